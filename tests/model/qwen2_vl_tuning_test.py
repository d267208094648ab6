"""The way of a Qwen2-VL, Qwen2.5-VL or Qwen3-VL that is tuned: a Hugging Face folder is imported, trained in each way that there is, and exported,
and transformers has the same losses, gradient steps, floating-point operations and generated tokens.

usage: qwen2_vl_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE FAMILY; exit 77 where the oracle's wheels are missing."""
import json
import subprocess
import sys
import time
import unittest

FAMILY = sys.argv.pop(3)

import peft
import picture_questions
from picture_questions import Pictures, answer, draw_picture, engine, folder, inputs_of, loaded, make, metrics, run, torch
from qwen2_vl_processor import processor_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

SIZES = [(32, 24), (8, 8), (17, 60), (64, 33), (40, 40)]  # 4 x 3, 1, 2 x 8, 8 x 4 and 5 x 5 cells
CELLS = 40  # of an image at most
SAMPLES = 12  # of questions.tar
LAYERS, WIDTH = 2, 64  # of the decoder


def setUpModule():
    words = make("make-qwen2-vl", SIZES, CELLS, 1024, "--family", FAMILY)
    QwenVl.processor = processor_of(folder / "hf", words, words.chat_template)
    for number in range(SAMPLES):
        draw_picture(number, SIZES[number % len(SIZES)]).save(folder / f"question-{number}.png")
    # Every step has all samples, so that their order means nothing.
    whole = (folder / "recipe.lua").read_text().replace("batch = 8, samples = 48", f"batch = {SAMPLES}, samples = {4 * SAMPLES}")
    (folder / "all.lua").write_text(whole.replace("batch =", """evaluation = { fvlm.evaluation "asked" {
        data = fvlm.mix { { "questions.tar" }, chat_template = "default", system = "", max_frames = 40, max_text_tokens = 64 } } },
    batch ="""))


def losses(name):
    return [line["loss"] for line in metrics(name)]


def finals(name):
    last = max((folder / name / "sft").glob("step-*"))
    return {str(path.relative_to(last)): path.read_bytes() for path in last.rglob("*.safetensors")}


class QwenVl(Pictures):
    sizes, decoder = SIZES, "model.layers."

    def frames_in(self, inputs):
        return inputs["image_grid_thw"].prod(1).sum().item() // 4

    def summed_loss(self, model, number):
        """Of an answer, its number of labels, and that of the text's tokens."""
        inputs = inputs_of(self.processor, "Which number?", [f"question-{number}.png"])
        asked = inputs["input_ids"].shape[1]
        answer = self.processor.tokenizer(f"It is {number}.<|im_end|>\n", return_tensors="pt")["input_ids"]
        inputs["input_ids"] = torch.cat([inputs["input_ids"], answer], 1)
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(answer)], 1)
        del inputs["attention_mask"]
        end = inputs["input_ids"].shape[1]
        logits = model(**inputs, logits_to_keep=torch.arange(asked - 1, end - 1)).logits[0]
        return torch.nn.functional.cross_entropy(logits, answer[0], reduction="sum"), answer.numel(), end

    def mean_loss(self, model):
        parts = [self.summed_loss(model, number) for number in range(SAMPLES)]
        return sum(loss for loss, _, _ in parts) / sum(labels for _, labels, _ in parts)


class Training(QwenVl, picture_questions.Training, unittest.TestCase):
    def test_steps_and_evaluations_are_those_of_transformers(self):
        run(engine, "train", "all.lua", "--run-dir", "all")
        lines, model = metrics("all"), loaded("hf")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
        for step, line in enumerate(lines):
            loss = self.mean_loss(model)
            self.assertAlmostEqual(line["loss"], loss.item(), delta=2e-4, msg=f"step {step}")
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
            self.assertAlmostEqual(line["gradient_norm"] / norm, 1, delta=1e-3, msg=f"step {step}")
            optimizer.step()
        self.assertLess(lines[-1]["loss"], 0.8 * lines[0]["loss"])
        with torch.no_grad():
            trained = self.mean_loss(model).item()
        found, = json.loads(run(engine, "eval", "all.lua", "--model", "all", "--json"))["results"]
        self.assertAlmostEqual(found["loss"], trained, delta=2e-4)

    def test_floating_point_operations_are_those_that_pytorch_counts(self):
        run(engine, "train", "all.lua", "--run-dir", "counted", "--max-steps", 1)
        line, model, unseen = metrics("counted")[0], loaded("hf"), 0
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
            for number in range(SAMPLES):
                loss, _, rows = self.summed_loss(model, number)
                loss.backward()
                unseen += rows * (rows - 1) / 2 * 4 * WIDTH * LAYERS * 3  # pairs that the causal mask hides, in three passes
        ours = line["flops_per_second"] * sum(value for name, value in line.items() if name.startswith("time."))
        theirs = counted.get_total_flops() - unseen
        print(f"{ours:.0f} floating-point operations, PyTorch {theirs:.0f}")
        self.assertAlmostEqual(ours / theirs, 1, delta=1e-4)

    def test_a_new_recipe_of_a_few_steps_shows_what_is_learnt(self):
        run(engine, "recipe", "new", "mine.lua", "--model", "model", "--data", "questions.tar", "--epochs", 4)
        said = run(engine, "train", "mine.lua", "--set", "stages.sft.optimizer.lr=1e-3")
        self.assertRegex(said, r"loss, step 1 +final loss\nsft +4 ")
        found = losses("runs/mine")
        self.assertEqual(len(found), 4)
        self.assertLess(found[-1], 0.9 * found[0])

    def test_recomputed_layers_change_nothing(self):
        run(engine, "train", "recipe.lua", "--run-dir", "kept")
        for name, layers in (("every", '"all"'), ("second", '{"every": 2}'), ("light", '"light"')):
            run(engine, "train", "recipe.lua", "--set", f"stages.sft.activation_checkpointing={{\"vision\": {layers}, \"decoder\": {layers}}}",
                "--run-dir", name)
            for recomputed, kept in zip(losses(name), losses("kept"), strict=True):  # gradients are summed in another order
                self.assertAlmostEqual(recomputed, kept, delta=2e-6 * kept)

    def test_images_beside_jsonl_are_those_in_tars(self):
        (folder / "questions.jsonl").write_text("".join(json.dumps(
            {"image": f"question-{number}.png", "conversations": [{"from": "human", "value": "<image>Which number?"},
                                                                   {"from": "gpt", "value": f"It is {number}."}]}) + "\n"
            for number in range(SAMPLES)))
        run(engine, "train", "recipe.lua", "--run-dir", "tars")
        (folder / "lines.lua").write_text((folder / "recipe.lua").read_text().replace("questions.tar", "questions.jsonl"))
        run(engine, "train", "lines.lua", "--run-dir", "lines")
        self.assertEqual(losses("lines"), losses("tars"))
        self.assertEqual(finals("lines"), finals("tars"))

    def test_a_killed_run_resumes_to_equal_bits(self):
        options = [engine, "train", "recipe.lua", "--set", "stages.sft.samples=480", "--run-dir"]
        run(*options, "unharmed")
        running = subprocess.Popen([*options, "killed"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not list((folder / "killed/sft").glob("step-*")) and running.poll() is None:
            time.sleep(0.002)
        running.kill()
        self.assertEqual(running.wait(), -9, "it ended before it was killed")
        run(*options, "killed")
        self.assertEqual(losses("killed"), losses("unharmed"))
        self.assertEqual(finals("killed"), finals("unharmed"))

    def test_two_ranks_share_texts_and_their_positions(self):
        run(engine, "train", "recipe.lua", "--run-dir", "alone")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--no-python", engine, "train",
                   "recipe.lua", "--context-parallel", 2, "--run-dir", "shared"]
        run(*command)
        for shared, alone in zip(losses("shared"), losses("alone"), strict=True):
            self.assertAlmostEqual(shared, alone, delta=1e-4)

    def adapt(self, name, *options):
        """Trains adapters so fast that what the model says about 3.png changes."""
        run(engine, "train", "lora.lua", "--set", "stages.sft.optimizer.lr=2e-2", "--run-dir", name, *options)
        answers = [answer(model, "--image", "3.png", "--prompt", "Which number?") for model in (name, "model")]
        self.assertNotEqual(answers[0]["ids"], answers[1]["ids"])
        return answers[0]

    def test_peft_loads_adapters_of_the_decoder(self):
        ours = self.adapt("adapters", "--set", "stages.sft.freeze=[\"vision\",\"connector\"]")
        run(engine, "lora", "export", "adapters", "--out", "peft")
        model = loaded("hf")
        decoder = torch.nn.ModuleDict({"model": model.model.language_model})
        decoder.config = model.config.text_config
        peft.PeftModel.from_pretrained(decoder, folder / "peft")
        self.expect_same(ours, model, inputs_of(self.processor, "Which number?", ["3.png"]))

    def test_adapters_of_the_encoder_train_and_merge(self):
        self.adapt("seen", "--set", "model.adapters=[{\"parts\":[\"vision\"],\"rank\":2,\"targets\":\"all\"}]",
                   "--set", "stages.sft.freeze=[\"decoder\",\"connector\"]")
        run(engine, "lora", "merge", "seen", "--out", "seen.merged")
        run(engine, "export", "seen.merged", "--huggingface", "--out", "seen.hf")
        self.expect_trained("seen", "seen.hf", 3)


if __name__ == "__main__":
    unittest.main()
