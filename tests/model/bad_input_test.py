"""Folders that do not fit and samples that are broken, as a user meets them: what is said, the exit code, and what is left behind.
whole_test.py has what is wrong with the config and the tensors of whole models.

usage: bad_input_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import io
import json
import os
import shutil
import tarfile
import unittest

import forked_program
from byte_tokenizer import tokenizer
from with_transformers import engine, folder as root

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, AutoModelForImageTextToText, CLIPVisionConfig, CLIPVisionModel, LlamaConfig,
                          LlavaConfig, NanoChatConfig, Qwen2Config, Qwen3Config, SiglipVisionConfig, SiglipVisionModel)

VISION = {"hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 7}
TEXT = {"vocab_size": 260, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2}
TOWERS = {"clip": (CLIPVisionModel, CLIPVisionConfig), "siglip": (SiglipVisionModel, SiglipVisionConfig)}
DECODERS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config, "nanochat": NanoChatConfig}
PROCESSOR = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}, "crop_size": 28}


def run(*command):
    return forked_program.run(command, env={**os.environ, "FVLM_CACHE": str(root / "cache")})


def setUpModule():
    torch.manual_seed(1)
    for name, (kind, config) in TOWERS.items():
        kind(config(**VISION)).save_pretrained(root / name)
    for name, config in DECODERS.items():
        AutoModelForCausalLM.from_config(config(**TEXT)).save_pretrained(root / name)
        (root / name / "tokenizer.json").write_text(tokenizer())
    whole = LlavaConfig(vision_config=CLIPVisionConfig(**VISION), text_config=LlamaConfig(**TEXT), image_token_index=256)
    AutoModelForImageTextToText.from_config(whole).save_pretrained(root / "llava")
    (root / "llava" / "tokenizer.json").write_text(tokenizer())
    (root / "llava" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    made = run(engine, "import", "--model", root / "llava", "--out", root / "model")
    assert made.returncode == 0, made.stderr


class Folders(unittest.TestCase):
    def refused(self, name, change, *words):
        """Importing the changed folder ends with code 4 and these words, and writes nothing."""
        changed = root / "changed"
        shutil.rmtree(changed, ignore_errors=True)
        shutil.copytree(root / name, changed)
        change(changed)
        parts = {"vision": root / "clip", "decoder": root / "llama"} | {"vision" if name in TOWERS else "decoder": changed}
        what = ("--model", changed) if name == "llava" else ("--vision", parts["vision"], "--decoder", parts["decoder"])
        said = run(engine, "import", *what, "--out", root / "refused")
        self.assertEqual(said.returncode, 4, said.stdout + said.stderr)
        for word in words:
            self.assertIn(word, said.stderr)
        self.assertEqual([path.name for path in root.iterdir() if path.name.startswith("refused")], [])

    def test_each_family(self):
        def tensors(edit):
            def change(folder):
                content = load_file(folder / "model.safetensors")
                edit(content)
                save_file(content, folder / "model.safetensors", metadata={"format": "pt"})
            return change

        def write(file, content):
            return lambda folder: (folder / file).write_text(content)

        def cut(folder):
            weights = folder / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-1000])

        def architecture(folder):
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))

        for name in (*TOWERS, *DECODERS, "llava"):
            key = sorted(key for key, tensor in load_file(root / name / "model.safetensors").items() if tensor.dim() == 2)[0]
            cases = {
                "another architecture": (architecture, 'model_type "mamba" is not supported', "config.json"),
                "a missing tensor": (tensors(lambda all: all.pop(key)), f'tensor "{key}" is missing', "fetch both again"),
                "an extra tensor": (tensors(lambda all: all.update(zork=torch.zeros(3))), 'tensor "zork" is not one of this model'),
                "another shape": (tensors(lambda all: all.update({key: torch.zeros(7)})), f'tensor "{key}" has the shape [7]'),
                "another dtype": (tensors(lambda all: all.update({key: all[key].to(torch.int64)})), f'tensor "{key}" holds I64'),
                "a truncated file": (cut, "reach past the end of the file", "cut short"),
            }
            if name not in TOWERS:
                cases["a tokenizer that does not fit"] = (write("tokenizer.json", tokenizer(270)),
                                                          "the tokenizer has 270 tokens, the decoder 260", "resize_token_embeddings")
            if name not in DECODERS:
                cases["an unknown image processor"] = (write("preprocessor_config.json", '{"image_processor_type": "Foo"}'),
                                                       "the image processor 'Foo' is not supported", "preprocessor_config.json")
            for case, (change, *words) in cases.items():
                with self.subTest(f"{name}: {case}"):
                    self.refused(name, change, *words)


RECIPE = """
local fvlm = require "fvlm"
return fvlm.recipe {
  name = "sft", precision = "fp32", model = MODEL, checkpoint = { every = 100 }, loader = { quarantine = { count = 50, share = 1.0 } },
  fvlm.stage "sft" {
    data = fvlm.mix { { SHARD }, max_frames = 4, max_text_tokens = 120, system = "" MIX },
    objective = fvlm.next_token { on = "answer" }, optimizer = fvlm.adamw { lr = 1e-3 }, schedule = fvlm.constant {},
    batch = 2, epochs = 1,
  },
}
"""


def recipe(samples, mix=""):
    shard = root / "shard.tar"
    with tarfile.open(shard, "w") as tar:
        for number, files in enumerate(samples):
            for suffix, content in files.items():
                content = content if isinstance(content, bytes) else json.dumps(content).encode()
                entry = tarfile.TarInfo(f"{number:03}.{suffix}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    text = RECIPE.replace("MODEL", json.dumps(str(root / "model"))).replace("SHARD", json.dumps(str(shard))).replace("MIX", mix)
    (root / "recipe.lua").write_text(text)
    return root / "recipe.lua"


def png():
    image = io.BytesIO()
    Image.new("RGB", (28, 28), (200, 10, 30)).save(image, "png")
    return image.getvalue()


def asked(user, assistant="abc"):
    return {"user": user, "assistant": assistant}


class Samples(unittest.TestCase):
    BROKEN = [  # the sample's files, and what is said
        ({"000.png": png(), "001.png": png(), "json": asked("<image>Which?")}, "the text has 1 <image>, and the sample has 2 images"),
        ({"png": png(), "json": asked("<image><image>Which?")}, "the text has 2 <image>, and the sample has 1 image"),
        ({"000.png": png(), "001.png": png()[:60], "json": asked("<image> or <image>?")}, "001.png: a broken PNG"),
        ({"000.png": png(), "001.png": b"damaged", "json": asked("<image> or <image>?")}, "001.png: not an image: expected JPEG"),
        ({"png": png(), "json": asked("<image>" + "W" * 400)}, "of whose answer max_text_tokens = 120 leaves nothing"),
    ]
    GOOD = [{"png": png(), "json": asked("<image>Which?")}, {"png": png(), "json": asked("<image>Which?", "a" * 400)}]

    def test_are_skipped_and_counted(self):
        file = recipe([files for files, _ in self.BROKEN] + self.GOOD)
        said = run(engine, "data", "check", file)
        self.assertEqual(said.returncode, 4, said.stderr)
        counts = ("7 samples read, 2 used, 5 skipped (2 text or fields, 2 image or video, 1 no answer, or none left by max_text_tokens), "
                  "1 truncated to max_text_tokens")
        for words in [words for _, words in self.BROKEN] + [counts, "write one <image> for each image"]:
            self.assertIn(words, said.stdout)
        said = run(engine, "train", file, "--run-dir", root / "run")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertRegex(said.stdout, r"\d+ skipped \(\d+ text or fields, \d+ image or video, \d+ no answer")
        lines = [json.loads(line) for line in (root / "run" / "metrics.jsonl").read_text().splitlines()]
        ended = next(line for line in lines if line.get("what") == "stage_end")
        skipped = {key: count for key, count in ended.items() if key.startswith("skipped.")}
        self.assertEqual(set(skipped), {"skipped.text", "skipped.media", "skipped.no_answer"})
        self.assertEqual(ended["samples_read"], ended["samples_used"] + sum(skipped.values()), "none is lost")

    def test_chat_templates_that_cannot_be_run(self):
        loops = "{% for a in range(100000) %}" * 3 + "x" + "{% endfor %}" * 3
        file = recipe(self.GOOD, ', chat_template = "default"')
        place = root / "model" / "decoder" / "chat_template.jinja"
        for template, words in (("{{ messages[0].content | zork }}", "the filter 'zork' is not supported"),
                                ("{% for m in messages %}{{ m.content }", "unexpected '}'"),
                                (loops, "takes more than 5000000 steps"),
                                ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
                                 "has no place for images")):
            with self.subTest(words):
                place.write_text(template)
                for command in (("check", file, "--files"), ("train", file, "--run-dir", root / "never")):
                    said = run(engine, *command)
                    self.assertEqual(said.returncode, 4, said.stdout + said.stderr)
                    for word in (words, "chat_template.jinja"):
                        self.assertIn(word, said.stderr)
        place.unlink()

    def test_image_processors_that_are_not_supported(self):
        file = recipe(self.GOOD)
        place = root / "model" / "vision" / "preprocessor_config.json"
        place.write_text('{"image_processor_type": "Foo"}')
        said = run(engine, "check", file, "--files")
        place.write_text(json.dumps(PROCESSOR))
        self.assertEqual(said.returncode, 4, said.stdout)
        self.assertIn("the image processor 'Foo' is not supported", said.stderr)


if __name__ == "__main__":
    unittest.main()
