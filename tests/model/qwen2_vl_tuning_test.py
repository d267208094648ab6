"""The way of a Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, LFM3-VL or a Qwen3-VL with experts that is tuned: a Hugging Face folder is imported, trained in each way that there is, and exported,
and transformers has the same losses, gradient steps, floating-point operations and generated tokens.

usage: qwen2_vl_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE FAMILY; exit 77 where the oracle's wheels are missing."""
import io
import json
import subprocess
import sys
import time
import unittest
from unittest import mock

FAMILY = sys.argv.pop(3)
HAS_DELTA_RULE, HAS_CONVOLUTION = FAMILY == "qwen3_5", FAMILY == "lfm3_vl"  # in the first of two layers
LIMITS_WHOLE_VIDEOS = FAMILY in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "lfm3_vl")

import peft
import picture_questions
from picture_questions import answer, draw_picture, engine, folder, generated, inputs_of, loaded, losses, make, run, torch, weights
from cell_tuning import LAYERS, SAMPLES, CellPictures, CellTraining, RewardTraining, VideoTraining, write_questions, write_videos
from qwen2_vl_processor import processor_of
from transformers.models.qwen3_5 import modeling_qwen3_5

SIZES = [(32, 24), (8, 8), (17, 60), (64, 33), (40, 40)]  # 4 x 3, 1, 2 x 8, 8 x 4 and 5 x 5 cells
CELLS = 40  # of an image at most


def setUpModule():
    if FAMILY.endswith("_moe"):
        picture_questions.LOADING = {"experts_implementation": "eager"}  # whose products PyTorch counts
    words = make("make-qwen2-vl", SIZES, CELLS, 1024, "--family", FAMILY)
    words.image_token, words.video_token = "<|image_pad|>", "<|video_pad|>"
    QwenVl.processor = processor_of(folder / "hf", words, words.chat_template, FAMILY)
    whole = write_questions(SIZES)
    write_videos(whole)
    (folder / "all.lua").write_text(whole.replace("batch =", """evaluation = { fvlm.evaluation "asked" {
        data = fvlm.mix { { "questions.tar" }, chat_template = "default", system = "", max_frames = 40, max_text_tokens = 64 } } },
    batch ="""))


class QwenVl(CellPictures):
    sizes, decoder, end = SIZES, "language_model.layers." if HAS_CONVOLUTION else "model.layers.", "<|im_end|>\n"
    linears = ("_proj.weight", "in_proj_qkv.weight", "in_proj_z.weight", "feed_forward.w")  # those of Qwen3.5, and of LFM3-VL

    def frames_in(self, inputs):
        return inputs["image_grid_thw"].prod(1).sum().item() // 4


class Training(QwenVl, VideoTraining, RewardTraining, CellTraining, unittest.TestCase):
    reward_loss = "dr_grpo" if FAMILY == "qwen2_5_vl" else "grpo"
    attending = LAYERS - (HAS_DELTA_RULE or HAS_CONVOLUTION)

    def uncounted(self, counted):
        """Convolutions, less what the engine counts of a delta rule besides: three products of each row's key with a head's state, in three passes."""
        if HAS_CONVOLUTION:
            return sum(count for operation, count in counted.get_flop_counts()["Global"].items() if "convolution" in str(operation))
        if not HAS_DELTA_RULE:
            return 0
        rows = sum(inputs_of(self.processor, "Which number?", [f"question-{number}.png"])["input_ids"].shape[1]
                   + len(self.processor.tokenizer(f"It is {number}.{self.end}")["input_ids"]) for number in range(SAMPLES))
        heads, keys, values = 4, 8, 8
        return -3 * 3 * rows * 2 * heads * keys * values

    def test_floating_point_operations_are_those_that_pytorch_counts(self):
        """Of a delta rule row by row, which has no matrix products, and without its convolution."""
        with (mock.patch.object(modeling_qwen3_5, "torch_chunk_gated_delta_rule", modeling_qwen3_5.torch_recurrent_gated_delta_rule),
              mock.patch.object(modeling_qwen3_5, "causal_conv1d_fn", lambda rows, *_, **__: rows)):
            super().test_floating_point_operations_are_those_that_pytorch_counts()

    def test_two_ranks_share_texts_and_their_positions(self):
        if not HAS_DELTA_RULE and not HAS_CONVOLUTION:
            return super().test_two_ranks_share_texts_and_their_positions()
        self.expect_two_ranks_refused()

    def test_steps_and_evaluations_are_those_of_transformers(self):
        model = self.expect_steps_of_transformers("all", self.mean_loss, 0.8)
        with torch.no_grad():
            trained = self.mean_loss(model).item()
        found, = json.loads(run(engine, "eval", "all.lua", "--model", "all", "--json"))["results"]
        self.assertAlmostEqual(found["loss"], trained, delta=2e-4)

    def test_a_new_recipe_has_room_for_a_part_of_a_long_video(self):
        """100 steps of 25 cells, or with Qwen3-VL, Qwen3.5 and LFM3-VL as many as their limit for a whole video makes; the decoder has 2048 positions."""
        frames = [draw_picture(number, (40, 40)).quantize(8) for number in range(200)]
        video = io.BytesIO()
        frames[0].save(video, "gif", save_all=True, append_images=frames[1:], duration=1000)
        (folder / "long.gif").write_bytes(video.getvalue())
        (folder / "long.jsonl").write_text(json.dumps({"video": "long.gif", "conversations": [
            {"from": "human", "value": "<video>\nWhich number?"}, {"from": "gpt", "value": "It is 1."}]}) + "\n")
        run(engine, "recipe", "new", "long.lua", "--model", "model", "--data", "long.jsonl")
        recipe = (folder / "long.lua").read_text()
        self.assertIn("max_frames = 100" if LIMITS_WHOLE_VIDEOS else "max_frames = 1024", recipe)
        said = json.loads(run(engine, "data", "show", "long.lua", 0, "--json"))
        self.assertIn(said["frames"], range(1000, 1025) if not LIMITS_WHOLE_VIDEOS else [100])

    def test_images_beside_jsonl_are_those_in_tars(self):
        (folder / "questions.jsonl").write_text("".join(json.dumps(
            {"image": f"question-{number}.png", "conversations": [{"from": "human", "value": "<image>Which number?"},
                                                                   {"from": "gpt", "value": f"It is {number}."}]}) + "\n"
            for number in range(SAMPLES)))
        run(engine, "train", "recipe.lua", "--run-dir", "tars")
        (folder / "lines.lua").write_text((folder / "recipe.lua").read_text().replace("questions.tar", "questions.jsonl"))
        run(engine, "train", "lines.lua", "--run-dir", "lines")
        self.assertEqual(losses("lines"), losses("tars"))
        self.assertEqual(weights("lines"), weights("tars"))

    def limited(self, name, **limits):
        """With transformers' own processor of a folder, with limits of its own."""
        return mock.patch.object(QwenVl, "processor", processor_of(folder / name, self.processor.tokenizer, self.processor.chat_template, FAMILY, **limits))

    def test_limits_of_images_are_those_of_transformers(self):
        """In training, in a checkpoint, in an exported folder and as options, and where samples are preprocessed."""
        limits = {"min_pixels": 4 * 64, "max_pixels": 6 * 64}  # all pictures but one have less or more
        text = (folder / "all.lua").read_text()
        written = "".join(f", {key} = {value}" for key, value in limits.items())
        (folder / "limited.lua").write_text(text.replace('directory = "model"', 'directory = "model"' + written))
        own = self.processor.image_processor.size
        for name, least, most in (("all", own["shortest_edge"], own["longest_edge"]), ("limited", *limits.values())):
            said = " ".join(run(engine, "plan", f"{name}.lua").split())
            self.assertIn(f" images any size, min_pixels {least}, max_pixels {most}, video_min_pixels ", said)
        with self.limited("hf", **limits):
            self.expect_steps_of_transformers("limited", self.mean_loss, 0.9)
            self.expect_equal_bits("limited.lua", "limited_whole", max_steps=2)
            run(engine, "export", "limited", "--huggingface", "--out", "limited.hf")
            self.expect_trained("limited", "limited.hf", 0, 1, 3)
            self.expect_same(answer("model", "--image", "3.png", "--prompt", "Which number?", "--min-pixels", 4 * 64, "--max-pixels", 6 * 64),
                             loaded("hf"), inputs_of(self.processor, "Which number?", ["3.png"]))
        with self.limited("limited.hf"):
            self.expect_trained("limited", "limited.hf", 0, 1, 3)
        with self.limited("hf", min_pixels=64, max_pixels=2 * 64):
            self.expect_same(answer("limited", "--image", "3.png", "--prompt", "Which number?", "--min-pixels", 64, "--max-pixels", 2 * 64),
                             loaded("limited.hf"), inputs_of(self.processor, "Which number?", ["3.png"]))
        run(engine, "train", "all.lua", "--set", "stages.sft.data.preprocessed=limited_whole_prepared/sft", "--run-dir", "unlimited", "--max-steps", 1)
        said = (folder / "unlimited" / "log.txt").read_text()
        self.assertIn("image processor was", said)
        run(engine, "recipe", "new", "narrow.lua", "--model", "model", "--data", "questions.tar", "--max-pixels", 6 * 64)
        self.assertIn("max_pixels = 384", (folder / "narrow.lua").read_text())
        run(engine, "train", "lora.lua", "--set", "model.max_pixels=384", "--set", 'stages.sft.freeze=["decoder","connector"]',
            "--set", 'model.adapters=[{"parts":["vision"],"rank":2,"targets":"all"}]', "--run-dir", "limited_adapters")
        run(engine, "lora", "merge", "limited_adapters", "--out", "limited_merged")
        for name in ("limited_adapters", "limited_merged"):
            self.assertLess(answer(name, "--image", "3.png", "--prompt", "?")["frames"], 7, name)

    def test_limits_of_videos_leave_images_alone(self):
        def frames(model, *words):
            return answer(model, *words, "--prompt", "Which number?")["frames"]

        video, image, of_a_frame = ("--video", "0.gif"), ("--image", "3.png"), 4 * 64  # which has 3 x 2 cells of 64 pixels
        pixels = of_a_frame * (5 if LIMITS_WHOLE_VIDEOS else 1)
        with self.limited("hf", max_pixels=of_a_frame):
            inputs = self.inputs_of_video(0)
            expected = inputs["video_grid_thw"].prod().item() // 4
            ours = answer("model", *video, "--prompt", "Which number?", "--video-max-pixels", pixels)
            self.assertEqual(ours["frames"], expected)
            self.assertEqual(ours["ids"], generated(loaded("hf"), inputs, min_new_tokens=8, eos_token_id=[]))
        self.assertGreater(frames("model", *video), expected)
        run(engine, "train", "videos.lua", "--set", f"model.video_max_pixels={pixels}", "--run-dir", "limited_videos")
        self.assertEqual((frames("limited_videos", *video), frames("limited_videos", *image)), (expected, frames("model", *image)))
        run(engine, "train", "all.lua", "--set", f"model.max_pixels={of_a_frame}", "--max-steps", 1, "--run-dir", "limited_images")
        with self.limited("hf", max_pixels=of_a_frame):
            self.assertEqual(frames("limited_images", *image), self.frames_in(inputs_of(self.processor, "Which number?", ["3.png"])))
        self.assertEqual(frames("limited_images", *video), frames("model", *video))

    def test_a_killed_run_resumes_to_equal_bits(self):
        for data in ("recipe", "videos"):
            options = [engine, "train", f"{data}.lua", "--set", "stages.sft.samples=480", "--run-dir"]
            unharmed, killed = f"{data}_unharmed", f"{data}_killed"
            run(*options, unharmed)
            running = subprocess.Popen([*options, killed], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not list((folder / killed / "sft").glob("step-*")) and running.poll() is None:
                time.sleep(0.002)
            running.kill()
            self.assertEqual(running.wait(), -9, "it ended before it was killed")
            run(*options, killed)
            self.assertEqual(losses(killed), losses(unharmed))
            self.assertEqual(weights(killed), weights(unharmed))

    def adapt(self, name, *options):
        """Trains adapters so fast that what the model says about 3.png changes."""
        run(engine, "train", "lora.lua", "--set", "stages.sft.optimizer.lr=2e-2", "--run-dir", name, *options)
        answers = [answer(model, "--image", "3.png", "--prompt", "Which number?") for model in (name, "model")]
        self.assertNotEqual(answers[0]["ids"], answers[1]["ids"])
        return answers[0]

    def test_peft_loads_adapters_of_the_decoder(self):
        ours = self.adapt("adapters", "--set", "stages.sft.freeze=[\"vision\",\"connector\"]")
        run(engine, "lora", "export", "adapters", "--part", "decoder", "--out", "peft")
        model = loaded("hf")
        decoder = torch.nn.ModuleDict({"model": model.model.language_model})
        decoder.config, decoder.base_model_prefix = model.config.text_config, "model"
        peft.PeftModel.from_pretrained(decoder, folder / "peft")
        self.expect_same(ours, model, inputs_of(self.processor, "Which number?", ["3.png"]))

    def test_peft_loads_adapters_of_the_whole_model_and_a_trained_connector(self):
        adapters = [{"parts": ["vision"], "rank": 2, "targets": "all"}, {"parts": ["decoder"], "rank": 4, "alpha": 6, "targets": "all"}]
        ours = self.adapt("both", "--set", f"model.adapters={json.dumps(adapters)}")
        run(engine, "lora", "export", "both", "--out", "both.peft")
        model = loaded("hf")
        wrapped = peft.PeftModel.from_pretrained(model, folder / "both.peft")
        self.assertTrue(wrapped.peft_config["default"].modules_to_save, "the connector")
        self.expect_same(ours, wrapped, inputs_of(self.processor, "Which number?", ["3.png"]))

    def test_adapters_of_the_encoder_train_and_merge(self):
        self.adapt("seen", "--set", "model.adapters=[{\"parts\":[\"vision\"],\"rank\":2,\"targets\":\"all\"}]",
                   "--set", "stages.sft.freeze=[\"decoder\",\"connector\"]")
        run(engine, "lora", "merge", "seen", "--out", "seen.merged")
        run(engine, "export", "seen.merged", "--huggingface", "--out", "seen.hf")
        self.expect_trained("seen", "seen.hf", 3)


if __name__ == "__main__":
    unittest.main()
