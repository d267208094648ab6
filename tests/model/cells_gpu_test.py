"""A Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, both also with experts, LFM3-VL, Ministral 3, Pixtral, LightOnOCR, Gemma 4, LFM2-VL, MiniCPM-V, PaddleOCR-VL, GLM-OCR,
GLM-4.1V, HunyuanOCR or VideoLLaMA 3 on a GPU, with heads as wide as those of the published models, images of several sizes and, with the
Qwens and LFM3-VL, a video: in float32 its steps, gradients, tokens and the answers that it is rewarded for are those of the CPU but for
rounding, in bf16 they are close to them; captured steps are those that ran one operation after the other, to the bit, and it is plugins
that attend; a server answers as `generate` does.

usage: cells_gpu_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE FAMILY; exit 77 where the oracle's wheels are missing."""
import functools
import json
import sys
import unittest

FAMILY = sys.argv.pop(3)

from picture_questions import PROMPTS, answer, engine, folder, load_file, make, metrics, run, save_file, torch, write_clip
from running_server import Server, with_image

SIZES = [(32, 24), (8, 8), (17, 60), (64, 33), (40, 40)]  # 4 x 3, 1, 2 x 8, 8 x 4 and 5 x 5 cells; windows have 2 x 2
STEPS = 40
HAS_VIDEOS = FAMILY.startswith("qwen") or FAMILY == "lfm3_vl"
REWARDS = "fvlm.grpo { answers = 3, max_new_tokens = 6, kl = 0.1, show = 100, reward = function(answer) return #answer.text % 4 end }"
CELL = 12 if FAMILY == "gemma4" else 8  # pixels along its side


def setUpModule():
    if FAMILY == "gemma4":  # whose images all become some 70 cells
        make("make-gemma4", SIZES, 70, 1024, "--published-heads")
    elif FAMILY.startswith("minicpm"):
        make("make-minicpm", SIZES, 60, 1024, "--family", FAMILY, "--published-heads")
    elif FAMILY == "glm4v":
        make("make-glm-ocr", SIZES, 40, 1024, "--family", FAMILY, "--published-heads")
    elif FAMILY in ("lfm2_vl", "paddleocr_vl", "glm_ocr", "hunyuan_ocr", "video_llama_3"):
        make(f"make-{FAMILY.replace('_', '-')}", SIZES, 40, 1024, "--published-heads")
    else:
        make("make-qwen2-vl" if HAS_VIDEOS else "make-mistral3", SIZES, 40, 1024, "--family", FAMILY, "--published-heads")
    write_clip()
    (folder / "rewards.lua").write_text((folder / "recipe.lua").read_text().replace('fvlm.next_token { on = "answer" }', REWARDS))


@functools.cache
def trained(name, recipe, *options):
    """What the steps of a run say."""
    run(engine, "train", recipe, "--run-dir", name, *(word for option in options for word in option.split(" ")))
    return [{key: line.get(key) for key in ("loss", "gradient_norm", "time.graph")} for line in metrics(name)]


# A step of AdamW is as large for a gradient that is rounding alone as for any other: with large steps runs drift apart.
SMALL_STEPS = "--set stages.sft.optimizer.lr=1e-4"


def on_cpu(recipe):
    return trained(f"cpu-{recipe}", recipe, "--device cpu", SMALL_STEPS)


def on_gpu(name, recipe, *options):
    samples = f"--set stages.sft.samples={8 * STEPS}"
    return trained(name, recipe, "--device cuda", "--set precision=bf16", "--set deterministic=true", samples, *options)


def drawn(name):
    """The answers that the steps of a run were rewarded for."""
    lines = [json.loads(line) for line in (folder / name / "sft" / "rollouts.jsonl").read_text().splitlines()]
    return [(line["step"], line["key"], [(each["ids"], each["reward"]) for each in line["answers"]]) for line in lines]


def final_weights(name):
    last = max((folder / name / "sft").glob("step-*"))
    return {str(path.relative_to(last)): path.read_bytes() for path in last.rglob("*.safetensors")}


@functools.cache
def batch():
    """Three samples: a question about an image, one about an image and a video of two moments of two frames, and one about none. Qwen3-VL's,
    Qwen3.5's and LFM3-VL's texts have room between the moments, so that each is a picture of its own."""
    moments = [[1, 7, 1, 2], [1, 7, 1, 2]] if FAMILY.startswith("qwen3") or FAMILY == "lfm3_vl" else [[1, 7, 2, 2]] if HAS_VIDEOS else [[1, 7, 1, 1]]
    grids, lengths = torch.tensor([[4, 3, 1, 1], [2, 5, 1, 1], *moments]), torch.tensor([20, 33, 9])
    cells = grids.prod(1)
    generator = torch.Generator().manual_seed(1)
    frames = torch.stack([cells[0], cells[1:].sum(), torch.tensor(0)])
    texts = [torch.randint(256, (length,), generator=generator) for length in lengths.tolist()]
    if FAMILY == "minicpmv4_7":  # whose positions are counted from the token before an image
        for text, image in ((1, 2), (1, 1), (0, 0)):
            texts[text] = torch.cat([torch.tensor([9]), torch.full([int(cells[image])], -1), texts[text]])
    ids, lengths = torch.cat(texts), torch.tensor([len(text) for text in texts])
    save_file({"frames": torch.randn(int(cells.sum()), 3, CELL, CELL, generator=generator), "frame_counts": frames, "image_grids": grids,
               "step_seconds": torch.full([len(grids)], 0.5), "image_counts": torch.tensor([1, 1 + len(moments), 0]),
               "input_ids": ids, "text_lengths": lengths, "loss_mask": torch.ones(len(ids), dtype=torch.long)}, folder / "batch.safetensors")


@functools.cache
def traced(device, dtype):
    batch()
    out = folder / f"{device}-{dtype}.safetensors"
    run(engine, "trace", "model", "--batch", "batch.safetensors", "--out", out, "--grads", "--device", device, "--dtype", dtype)
    return {name: tensor.float() for name, tensor in load_file(out).items() if tensor.is_floating_point()}


class OnGpu(unittest.TestCase):
    def assert_captured_is_eager(self, name, recipe):
        captured, eager = on_gpu(name, recipe), on_gpu(f"{name}-eager", recipe, "--set speed.graphs=false")
        self.assertEqual(len(captured), STEPS)
        replayed = sum(line["time.graph"] is not None for line in captured)
        print(f"{name}: {replayed} of {STEPS} steps were replayed")
        self.assertGreater(replayed, STEPS // 4)
        for step, (ours, theirs) in enumerate(zip(captured, eager, strict=True)):
            self.assertIsNone(theirs["time.graph"])
            for key in ("loss", "gradient_norm"):
                self.assertEqual(ours[key], theirs[key], f"{key} of step {step}")
        ours, theirs = final_weights(name), final_weights(f"{name}-eager")
        self.assertEqual(ours.keys(), theirs.keys())
        self.assertEqual([file for file in ours if ours[file] != theirs[file]], [])
        if recipe != "rewards.lua":  # whose loss is about 0
            self.assertLess(captured[-1]["loss"], captured[0]["loss"])
        log = (folder / name / "log.txt").read_text()
        self.assertIn("Using attention backend: attention-", log)
        self.assertNotIn("falling back", log)
        self.assertNotIn("capturing a CUDA graph failed", log)
        if FAMILY != "gemma4":  # some of whose heads are wider than those that plugins attend with
            self.assertNotIn("reference (ATen, one masked softmax)", log)

    def assert_same_steps(self, recipe):
        """In float32, and the first one in bf16."""
        right = on_cpu(recipe)
        exact = on_gpu(f"fp32-{recipe}", recipe, SMALL_STEPS, "--set precision=fp32", "--max-steps 6")
        rounded = on_gpu(f"bf16-{recipe}", recipe, SMALL_STEPS, "--max-steps 1")
        for step, (ours, theirs) in enumerate(zip(exact, right, strict=True)):
            self.assertAlmostEqual(ours["loss"] / theirs["loss"], 1, delta=1e-4, msg=f"step {step}")
            self.assertAlmostEqual(ours["gradient_norm"] / theirs["gradient_norm"], 1, delta=1e-3, msg=f"step {step}")
        self.assertAlmostEqual(rounded[0]["loss"] / right[0]["loss"], 1, delta=0.01)
        self.assertAlmostEqual(rounded[0]["gradient_norm"] / right[0]["gradient_norm"], 1, delta=0.05)

    def test_captured_steps_are_eager_ones_to_the_bit(self):
        self.assert_captured_is_eager("all", "recipe.lua")

    def test_captured_steps_of_adapters_are_eager_ones_to_the_bit(self):
        self.assert_captured_is_eager("adapters", "lora.lua")

    def test_captured_steps_on_preferences_are_eager_ones_to_the_bit(self):
        self.assert_captured_is_eager("preferences", "dpo.lua")

    def test_captured_steps_on_rewards_are_eager_ones_to_the_bit(self):
        self.assert_captured_is_eager("rewards", "rewards.lua")
        self.assertEqual(drawn("rewards"), drawn("rewards-eager"))

    def test_answers_and_steps_on_rewards_are_those_of_a_cpu(self):
        """Of two steps: rounding changes a token sooner or later, and with it what is learnt."""
        right = trained("cpu-rewards.lua", "rewards.lua", "--device cpu", SMALL_STEPS, "--max-steps 2")
        exact = on_gpu("fp32-rewards.lua", "rewards.lua", SMALL_STEPS, "--set precision=fp32", "--max-steps 2")
        self.assertEqual(len(right), 2)
        self.assertEqual(drawn("fp32-rewards.lua"), drawn("cpu-rewards.lua"))
        for step, (ours, theirs) in enumerate(zip(exact, right, strict=True)):
            self.assertAlmostEqual(ours["loss"], theirs["loss"], delta=1e-4, msg=f"step {step}")
            self.assertAlmostEqual(ours["gradient_norm"] / theirs["gradient_norm"], 1, delta=1e-3, msg=f"step {step}")

    def test_steps_are_those_of_a_cpu(self):
        self.assert_same_steps("recipe.lua")

    def test_steps_of_adapters_are_those_of_a_cpu(self):
        self.assert_same_steps("lora.lua")

    def test_numbers_are_those_of_a_cpu(self):
        """In bf16 gradients are as near to those in float32 as a CPU's in bf16, whose noise depends on the batch."""
        right, rounded_on_cpu = traced("cpu", "fp32"), traced("cpu", "bf16")
        exact, rounded = traced("cuda", "fp32"), traced("cuda", "bf16")
        floor = 0.01 * max(tensor.abs().max().item() for name, tensor in right.items() if name.startswith("grad."))
        self.assertEqual(exact.keys(), right.keys())
        for name, tensor in right.items():
            scale = max(tensor.abs().max().item(), floor if name.startswith("grad.") else 0)
            self.assertLessEqual((exact[name] - tensor).abs().max().item(), 1e-4 * scale, name)
            if tensor.abs().max() >= floor and tensor.numel() > 1:
                cosine, of_cpu = (torch.nn.functional.cosine_similarity(all_of[name].flatten().double(), tensor.flatten().double(), 0).item()
                                  for all_of in (rounded, rounded_on_cpu))
                self.assertGreaterEqual(cosine, min(0.99, 1 - 2 * (1 - of_cpu)), f"{name} in bf16")
        self.assertAlmostEqual(rounded["loss"].item() / right["loss"].item(), 1, delta=0.01)

    def test_tokens_are_those_of_a_cpu(self):
        questions = [("--image", f"{number}.png", "--prompt", PROMPTS[1]) for number in range(len(SIZES))]
        questions.append(("--image", "1.png", "--image", "0.png", "--prompt", "Is <image> like <image>?"))
        if HAS_VIDEOS:
            questions.append(("--video", "clip.gif", "--prompt", "What happens?"))
        for question in questions:
            with self.subTest(question):
                ours, theirs = (answer("model", *question, "--device", device, "--dtype", "fp32")["ids"] for device in ("cuda", "cpu"))
                self.assertEqual(ours, theirs)

    def test_a_server_answers_as_generate_does(self):
        prompt = "Which colour is it?"
        with Server("--dtype", "fp32", model="model") as server:
            for number in (0, 1, 0):
                expected = run(engine, "generate", "model", "--image", f"{number}.png", "--prompt", prompt, "--max-tokens", 8, "--json",
                               "--dtype", "fp32")
                self.assertEqual(server.ask(with_image(prompt, (folder / f"{number}.png").read_bytes())), json.loads(expected)["text"])
        self.assertIn("in fp32 on the GPU", server.log)

    def test_a_server_computes_in_bf16_unless_told(self):
        with Server(model="model") as server:
            self.assertGreater(len(server.ask(with_image("Which colour is it?", (folder / "0.png").read_bytes()))), 0)
        self.assertIn("in bf16 on the GPU", server.log)


if __name__ == "__main__":
    unittest.main()
