"""The way of a Mistral Small 3.1, Ministral 3 or Pixtral that is tuned: a Hugging Face folder is imported, trained in each way that there
is, and exported, and transformers has the same losses, gradient steps, floating-point operations and generated tokens.

usage: mistral3_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE FAMILY; exit 77 where the oracle's wheels are missing."""
import sys
import unittest

FAMILY = sys.argv.pop(3)

import picture_questions
from picture_questions import Pictures, draw_picture, engine, folder, inputs_of, loaded, losses, make, metrics, run, torch, write_clip
from mistral3_processor import processor_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

# 4 x 3, 2 x 1, 3 x 8, 8 x 4 (shrunk to 60 pixels) and 5 x 5 cells; transformers cannot read an image of a single one by itself.
SIZES = [(32, 24), (16, 8), (17, 60), (64, 33), (40, 40)]
SAMPLES = 12  # of questions.tar
LAYERS, WIDTH = 2, 64  # of the decoder


def setUpModule():
    words = make("make-mistral3", SIZES, 40, 1024, "--family", FAMILY)
    Mistral3.processor = processor_of(folder / "hf", words)
    for number in range(SAMPLES):
        draw_picture(number, SIZES[number % len(SIZES)]).save(folder / f"question-{number}.png")
    # Every step has all samples, so that their order means nothing.
    (folder / "all.lua").write_text((folder / "recipe.lua").read_text().replace("batch = 8, samples = 48",
                                                                                f"batch = {SAMPLES}, samples = {4 * SAMPLES}"))


class Mistral3(Pictures):
    sizes = SIZES

    def frames_in(self, inputs):
        return (inputs["image_sizes"] // 8).prod(1).sum().item()

    def summed_loss(self, model, number):
        """Of an answer, its number of labels, and that of the text's tokens."""
        inputs = inputs_of(self.processor, "Which number?", [f"question-{number}.png"])
        asked = inputs["input_ids"].shape[1]
        answer = self.processor.tokenizer(f"It is {number}.</s>", return_tensors="pt")["input_ids"]
        inputs["input_ids"] = torch.cat([inputs["input_ids"], answer], 1)
        del inputs["attention_mask"]
        end = inputs["input_ids"].shape[1]
        logits = model(**inputs, logits_to_keep=torch.arange(asked - 1, end - 1)).logits[0]
        return torch.nn.functional.cross_entropy(logits, answer[0], reduction="sum"), answer.numel(), end

    def mean_loss(self, model):
        parts = [self.summed_loss(model, number) for number in range(SAMPLES)]
        return sum(loss for loss, _, _ in parts) / sum(labels for _, labels, _ in parts)


class Generation(Mistral3, unittest.TestCase):
    def test_transformers_generates_the_same_tokens(self):
        self.check_every_picture()

    def test_videos_are_refused(self):
        write_clip()
        said = run(engine, "generate", "model", "--video", "clip.gif", "--prompt", "What happens?", code=4)
        self.assertIn("the model's folder does not say how videos are prepared", said)

    def test_cells_of_another_size_than_the_encoders_are_refused(self):
        config = folder / "model" / "vision" / "processor_config.json"
        written = config.read_text()
        config.write_text(written.replace('"patch_size": ', '"patch_size": 1'))
        said = run(engine, "generate", "model", "--image", "0.png", "--prompt", "What?", code=4)
        config.write_text(written)
        self.assertIn("pixels do not fit the encoder, whose images consist of cells of 8 x 8", said)


class Training(Mistral3, picture_questions.Training, unittest.TestCase):
    def test_steps_are_those_of_transformers(self):
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
        self.assertLess(lines[-1]["loss"], 0.9 * lines[0]["loss"])

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
        run(engine, "train", "mine.lua", "--set", "stages.sft.optimizer.lr=1e-3")
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

    def test_two_ranks_share_texts_and_their_positions(self):
        run(engine, "train", "recipe.lua", "--run-dir", "alone")
        run(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--no-python", engine, "train",
            "recipe.lua", "--context-parallel", 2, "--run-dir", "shared")
        for shared, alone in zip(losses("shared"), losses("alone"), strict=True):
            self.assertAlmostEqual(shared, alone, delta=1e-4)

    def test_packs_of_few_samples_come_to_the_same_steps(self):
        run(engine, "train", "recipe.lua", "--run-dir", "packed")
        run(engine, "train", "recipe.lua", "--set", 'stages.sft.packing={"frames": 40, "tokens": 256, "segments": 8}', "--run-dir", "small")
        for packed, alone in zip(losses("packed"), losses("small"), strict=True):
            self.assertAlmostEqual(packed, alone, delta=2e-4 * packed)


if __name__ == "__main__":
    unittest.main()
