"""The way of recipes/tiny/smolvlm.lua in a few steps: a Hugging Face folder is imported, trained and exported, and transformers, through
its own processor, generates from image files the tokens that the engine generates from them.

usage: smolvlm_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE MAKE_SHAPES RECIPES; exit 77 where the oracle's wheels are missing."""
import json
import os
import subprocess
import sys
import tarfile
import unittest
from pathlib import Path

make_shapes, recipes = (Path(sys.argv.pop(3)).resolve() for _ in range(2))
from against_oracle import engine, folder, load_file, save_file, tool, torch

os.environ |= {"HF_HUB_OFFLINE": "1", "FVLM_CACHE": str(folder / "cache")}
try:
    from PIL import Image, ImageDraw
    from transformers import AutoModelForImageTextToText, AutoProcessor
    from transformers.utils import logging
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

logging.disable_progress_bar()
SIZES = [(32, 32), (64, 64), (120, 30), (31, 75), (200, 120)]  # the third and fourth have two tiles, the others four
PROMPTS = ["Which colour is it?", "How many balls are there?", "<image>Which shape is it?", "Is this <image> a circle?"]
TOKENS = 8
RECIPE = [recipes / "tiny" / "smolvlm.lua", "--arg", f"data={folder / 'stills'}", "--arg", f"model={folder / 'model'}"]


def run(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=folder)
    assert result.returncode == 0, f"{command} ended with {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


def draw_picture(number, size):
    """A disk on a ground with a gradient, so that every tile differs."""
    width, height = size
    red = Image.linear_gradient("L").resize(size)
    picture = Image.merge("RGB", (red, red.rotate(180), Image.new("L", size, 60 * number % 256)))
    ImageDraw.Draw(picture).ellipse((width // 4, height // 4, width // 2, height // 2), fill=(255 - 50 * number, 40 * number, 90))
    picture.save(folder / f"{number}.png")


def strengthen(path):
    """Weights that matter: those of a new model are so small that it says the same about every picture."""
    generator = torch.Generator().manual_seed(5)
    tensors = {name: torch.randn(tensor.shape, generator=generator) * 1.2 / tensor[0].numel() ** 0.5 if tensor.dim() > 1 else tensor
               for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def setUpModule():
    global model, processor
    run(make_shapes, "--out", "stills", "--samples", "stills/questions=200,heldout/stills=12")
    tool("make-smolvlm", folder / "hf", "--tokenizer", folder / "stills" / "tokenizer")
    strengthen(folder / "hf" / "model.safetensors")
    run(engine, "import", "--model", "hf", "--out", "model")
    run(engine, "train", *RECIPE, "--set", "stages.sft.samples=96", "--run-dir", "run")
    run(engine, "export", "run", "--huggingface", "--out", "trained")
    model, processor = AutoModelForImageTextToText.from_pretrained(folder / "trained").eval(), AutoProcessor.from_pretrained(folder / "trained")
    for number, size in enumerate(SIZES):
        draw_picture(number, size)


def inputs_of(prompt, picture):
    """What transformers' processor makes of a question about an image file, which comes first unless the prompt says where."""
    before, mark, after = prompt.partition("<image>") if "<image>" in prompt else ("", "<image>", prompt)
    content = [{"type": "text", "text": before}] * bool(before) + [{"type": "image"}, {"type": "text", "text": after}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return processor(text=text, images=[Image.open(picture)], return_tensors="pt")


def generated(inputs, **options):
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False, **options)
    return ids[0, inputs["input_ids"].shape[1]:].tolist()


class RoundTrip(unittest.TestCase):
    def test_transformers_generates_the_same_tokens(self):
        answers = set()
        for number in range(len(SIZES)):
            for prompt in PROMPTS:
                with self.subTest(prompt, size=SIZES[number]):
                    inputs = inputs_of(prompt, folder / f"{number}.png")
                    ours = json.loads(run(engine, "generate", "run", "--image", f"{number}.png", "--prompt", prompt, "--max-tokens", TOKENS,
                                          "--ignore-eos", "--json"))
                    self.assertEqual(ours["frames"], inputs["pixel_values"].shape[1])
                    rows = (inputs["input_ids"] == processor.image_token_id).sum().item()
                    self.assertEqual(ours["prompt"] + rows, inputs["input_ids"].shape[1])
                    theirs = generated(inputs, min_new_tokens=TOKENS, eos_token_id=[])
                    self.assertEqual(ours["ids"], theirs)
                    answers.add(tuple(theirs))
        self.assertGreater(len(answers), len(SIZES), "the answers depend on picture and prompt")

    def test_it_ends_where_transformers_ends(self):
        ours = json.loads(run(engine, "generate", "run", "--image", "0.png", "--prompt", PROMPTS[0], "--max-tokens", TOKENS, "--json"))
        theirs = generated(inputs_of(PROMPTS[0], folder / "0.png"))
        self.assertTrue(ours["ended"])
        self.assertEqual(ours["ids"], theirs)

    def test_an_evaluation_has_transformers_answers(self):
        run(engine, "eval", *RECIPE, "--model", "run", "--set", "stages.sft.evaluation.sets.questions.measure=answer", "--scores",
            "scores.jsonl", "--show", "shown")
        keys = [json.loads(line)["key"] for line in (folder / "scores.jsonl").read_text().splitlines()]
        shown = [json.loads(path.read_text()) for path in sorted((folder / "shown" / "sft" / "questions").glob("*.json"))]
        self.assertEqual((len(keys), len(shown)), (12, 4))
        with tarfile.open(folder / "stills" / "heldout" / "stills" / "00000.tar") as tar:
            for key, sample in zip(keys, shown):
                question = json.load(tar.extractfile(f"{key}.json"))
                self.assertEqual(question["choices"][question["answer"]], sample["expected"])
                ids = generated(inputs_of(question["user"], tar.extractfile(f"{key}.png")))
                self.assertEqual(processor.decode(ids, skip_special_tokens=True).strip(), sample["answer"])

    def test_training_changed_every_weight(self):
        before, after = (load_file(folder / name / "model.safetensors") for name in ("hf", "trained"))
        self.assertEqual(set(before), set(after))
        for name, tensor in before.items():
            self.assertFalse(torch.equal(tensor, after[name]), name)


if __name__ == "__main__":
    unittest.main()
