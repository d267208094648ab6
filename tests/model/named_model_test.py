"""What MODEL of a command may name: the folder of a published model, and the name of one in the cache of Hugging Face's Hub. Each is imported
the first time and answers as the model directory that `import` makes of it.

usage: named_model_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import json
import os
import shutil
import unittest

import forked_program
from picture_questions import engine, folder, make

QUESTION = ["--prompt", "Which shape is it?", "--image", "0.png", "--max-tokens", 8, "--json"]
CACHE = folder / "cache" / "models"
HUB = folder / "hub"
COMMIT = "0123456789abcdef"


def setUpModule():
    make("make-qwen2-vl", [(32, 24)], 40, 1024)


class NamedModel(unittest.TestCase):
    def setUp(self):
        shutil.rmtree(CACHE, ignore_errors=True)

    def call(self, *words, code=0):
        result = forked_program.run((engine, *words), cwd=folder, env=os.environ | {"HF_HUB_CACHE": str(HUB)})
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def answer(self, model):
        result = self.call("generate", model, *QUESTION)
        return json.loads(result.stdout)["ids"], "importing this published model" in result.stderr

    def test_a_published_folder_answers_as_what_is_imported_of_it(self):
        expected, imports = self.answer("model")
        self.assertFalse(imports)
        self.assertFalse(CACHE.exists())
        self.assertEqual(self.answer("hf"), (expected, True))
        self.assertEqual(self.answer("hf/"), (expected, False))
        self.assertEqual(self.answer(folder / "hf"), (expected, False))
        self.assertEqual(len(list(CACHE.iterdir())), 1)

    def test_a_changed_folder_is_imported_anew(self):
        changed = folder / "changed"
        shutil.copytree(folder / "hf", changed)
        expected = self.answer("changed")
        self.assertEqual(expected[1], True)
        os.utime(changed / "config.json", (1, 1))
        self.assertEqual(self.answer("changed"), expected)
        shutil.rmtree(changed)

    def test_a_name_of_the_hub_is_that_of_its_newest_download(self):
        repository = HUB / "models--some--tiny-vl"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(COMMIT)
        snapshot = repository / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        for file in (folder / "hf").iterdir():
            (snapshot / file.name).symlink_to(file)
        expected, _ = self.answer("model")
        self.assertEqual(self.answer("some/tiny-vl"), (expected, True))
        self.assertEqual(self.answer("some/tiny-vl"), (expected, False))
        self.assertEqual([path.name.rsplit("-", 1)[0] for path in CACHE.iterdir()], ["tiny-vl"])
        self.assertIn("there is no such folder", self.call("generate", "some/other", *QUESTION, code=4).stderr)

    def test_other_verbs_take_them(self):
        self.call("generate", "hf", *QUESTION)
        (folder / "asked.jsonl").write_text(json.dumps({"user": "<image>What?", "image": "0.png"}) + "\n")
        for model in ("hf", "model"):
            self.call("generate", model, "--data", "asked.jsonl", "--answers", f"{model}.jsonl", "--max-tokens", 8)
        answers = [json.loads((folder / f"{model}.jsonl").read_text()) for model in ("hf", "model")]
        self.assertEqual(answers[0]["answer"], answers[1]["answer"])
        for model in ("hf", "model"):
            self.call("export", model, "--gguf", "f16", "--out", f"{model}.gguf.d")
        files = list((folder / "hf.gguf.d").iterdir())
        self.assertTrue(files)
        for file in files:
            self.assertEqual(file.stat().st_size, (folder / "model.gguf.d" / file.name.replace("hf", "model")).stat().st_size)

    def test_what_cannot_be_imported_leaves_nothing(self):
        broken = folder / "broken"
        shutil.copytree(folder / "hf", broken)
        weights = broken / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-16])
        result = self.call("generate", "broken", *QUESTION, code=4)
        self.assertIn("broken/model.safetensors", result.stderr)
        self.assertEqual(list(CACHE.iterdir()) if CACHE.exists() else [], [])
        (broken / "tokenizer.json").unlink()
        shutil.copy(folder / "hf" / "model.safetensors", weights)
        self.assertIn("tokenizer.json", self.call("generate", "broken", *QUESTION, code=4).stderr)
        shutil.rmtree(broken)


if __name__ == "__main__":
    unittest.main()
