"""The way of a Gemma 3: a Hugging Face folder is imported, trained and exported, and transformers generates from image files the tokens
that the engine generates from them, in the folder's own chat template, of one image and of several.

usage: gemma3_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import unittest

import picture_questions
from picture_questions import TOKENS, Pictures, engine, folder, generated, json, make, run
from transformers.models.gemma3 import processing_gemma3
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

SIZES = [(32, 32), (64, 64), (120, 30), (31, 75), (200, 120)]


class Gemma3Processor(processing_gemma3.Gemma3Processor):
    """With an image processor that needs no torchvision."""

    def check_argument_for_proper_class(self, *_):
        pass


def setUpModule():
    words = make("make-gemma3", SIZES, 2, 512)
    Gemma3.processor = Gemma3Processor(Gemma3ImageProcessorPil.from_pretrained(folder / "hf"), words, words.chat_template, image_seq_length=4)


class Gemma3(Pictures):
    sizes = SIZES

    def frames_in(self, inputs):
        return len(inputs["pixel_values"])

    def expect_same_tokens(self, ours, model, inputs):
        rows = (inputs["input_ids"] == model.config.image_token_index).sum().item()
        self.assertEqual(ours["prompt"] + rows, inputs["input_ids"].shape[1])
        self.assertEqual(ours["ids"], generated(model, inputs, min_new_tokens=TOKENS, eos_token_id=[]))


class Generation(Gemma3, unittest.TestCase):
    def test_transformers_generates_the_same_tokens(self):
        self.check_every_picture()

    def test_what_is_not_supported_is_refused(self):
        for file, changes, words in (("config.json", {"mm_tokens_per_image": 5}, "'mm_tokens_per_image' = 5"),
                                     ("config.json", {"mm_tokens_per_image": 9}, "'mm_tokens_per_image' = 9"),
                                     ("preprocessor_config.json", {"do_pan_and_scan": True}, "'do_pan_and_scan' = true")):
            with self.subTest(changes):
                path = folder / "hf" / file
                before = path.read_text()
                path.write_text(json.dumps(json.loads(before) | changes))
                said = run(engine, "import", "--model", "hf", "--out", "wrong", code=4)
                path.write_text(before)
                self.assertIn(words, said)


class Training(Gemma3, picture_questions.Training, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
