"""The way of recipes/tiny/smolvlm.lua in a few steps: a Hugging Face folder is imported, trained and exported, and transformers, through
its own processor, generates from image files the tokens that the engine generates from them.

usage: smolvlm_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE MAKE_SHAPES RECIPES; exit 77 where the oracle's wheels are missing."""
import json
import sys
import tarfile
import unittest
from pathlib import Path

make_shapes, recipes = (Path(sys.argv.pop(3)).resolve() for _ in range(2))
from picture_questions import (PROMPTS, TOKENS, Pictures, engine, folder, generated, inputs_of, load_file, loaded, run, strengthen, tool,
                               torch, write_pictures)
from transformers import AutoProcessor

SIZES = [(32, 32), (64, 64), (120, 30), (31, 75), (200, 120)]  # the third and fourth have two tiles, the others four
RECIPE = [recipes / "tiny" / "smolvlm.lua", "--arg", f"data={folder / 'stills'}", "--arg", f"model={folder / 'model'}"]


def setUpModule():
    run(make_shapes, "--out", "stills", "--samples", "stills/questions=200,heldout/stills=12")
    tool("make-smolvlm", folder / "hf", "--tokenizer", folder / "stills" / "tokenizer")
    strengthen(folder / "hf" / "model.safetensors")
    run(engine, "import", "--model", "hf", "--out", "model")
    run(engine, "train", *RECIPE, "--set", "stages.sft.samples=96", "--run-dir", "run")
    run(engine, "export", "run", "--huggingface", "--out", "trained")
    RoundTrip.processor = AutoProcessor.from_pretrained(folder / "trained")
    write_pictures(SIZES)


class RoundTrip(Pictures, unittest.TestCase):
    sizes = SIZES

    def frames_in(self, inputs):
        return inputs["pixel_values"].shape[1]

    def test_transformers_generates_the_same_tokens(self):
        self.check_every_picture("run", "trained")

    def test_it_ends_where_transformers_ends(self):
        ours = json.loads(run(engine, "generate", "run", "--image", "0.png", "--prompt", PROMPTS[0], "--max-tokens", TOKENS, "--json"))
        theirs = generated(loaded("trained"), inputs_of(self.processor, PROMPTS[0], ["0.png"]))
        self.assertTrue(ours["ended"])
        self.assertEqual(ours["ids"], theirs)

    def test_an_evaluation_has_transformers_answers(self):
        run(engine, "eval", *RECIPE, "--model", "run", "--set", "stages.sft.evaluation.sets.questions.measure=answer", "--scores",
            "scores.jsonl", "--show", "shown")
        keys = [json.loads(line)["key"] for line in (folder / "scores.jsonl").read_text().splitlines()]
        shown = [json.loads(path.read_text()) for path in sorted((folder / "shown" / "sft" / "questions").glob("*.json"))]
        self.assertEqual((len(keys), len(shown)), (12, 4))
        model = loaded("trained")
        with tarfile.open(folder / "stills" / "heldout" / "stills" / "00000.tar") as tar:
            for key, sample in zip(keys, shown):
                question = json.load(tar.extractfile(f"{key}.json"))
                self.assertEqual(question["choices"][question["answer"]], sample["expected"])
                (folder / "asked.png").write_bytes(tar.extractfile(f"{key}.png").read())
                ids = generated(model, inputs_of(self.processor, question["user"], ["asked.png"]))
                self.assertEqual(self.processor.decode(ids, skip_special_tokens=True).strip(), sample["answer"])

    def test_training_changed_every_weight(self):
        before, after = (load_file(folder / name / "model.safetensors") for name in ("hf", "trained"))
        self.assertEqual(set(before), set(after))
        for name, tensor in before.items():
            self.assertFalse(torch.equal(tensor, after[name]), name)


if __name__ == "__main__":
    unittest.main()
