"""The way of a PaliGemma: a Hugging Face folder is imported, trained and exported, and transformers generates from image files the tokens
that the engine generates from them, in the template of docs/chat-templates.md; with --gemma2 that of a PaliGemma 2.

usage: paligemma_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE [--gemma2]; exit 77 where the oracle's wheels are missing."""
import sys
import unittest
from pathlib import Path

import picture_questions
from picture_questions import Image, Pictures, answer, folder, loaded, make
from transformers.models.paligemma import processing_paligemma
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

OPTIONS = [sys.argv.pop()] if sys.argv[-1] == "--gemma2" else []
SIZES = [(32, 32), (64, 64), (120, 30), (31, 75), (200, 120)]
DOCUMENTED = (Path(__file__).parents[2] / "docs" / "chat-templates.md").read_text().split("### PaliGemma")[1].split("```jinja\n")[1].split("```")[0]


class PaliGemmaProcessor(processing_paligemma.PaliGemmaProcessor):
    """With an image processor that needs no torchvision."""

    def check_argument_for_proper_class(self, *_):
        pass


def inputs_of(processor, prompt, pictures):
    """What transformers' processor makes of a question about image files, which come first."""
    images = [[Image.open(folder / picture) for picture in pictures]]
    inputs = dict(processor(text="<image>" * len(pictures) + prompt, images=images, return_tensors="pt"))
    del inputs["labels"]
    return inputs


def setUpModule():
    (folder / "documented.jinja").write_text(DOCUMENTED)
    words = make("make-paligemma", SIZES, 2, 512, "--template", folder / "documented.jinja", *OPTIONS)
    if OPTIONS:
        picture_questions.LOADING = {"attn_implementation": "eager"}  # others leave out the bounds of Gemma 2's scores
    picture_questions.inputs_of = inputs_of
    PaliGemma.processor = PaliGemmaProcessor(SiglipImageProcessorPil.from_pretrained(folder / "hf"), words)


class PaliGemma(Pictures):
    sizes = SIZES

    def frames_in(self, inputs):
        return len(inputs["pixel_values"])


class Generation(PaliGemma, unittest.TestCase):
    def test_transformers_generates_the_same_tokens(self):
        model, answers = loaded("hf"), set()
        for number, size in enumerate(SIZES):
            for prompt in ("Which colour is it?", "answer en Which shape is it?"):
                with self.subTest(prompt, size=size):
                    ours = answer("model", "--image", f"{number}.png", "--prompt", prompt)
                    self.expect_same(ours, model, inputs_of(self.processor, prompt, [f"{number}.png"]))
                    answers.add(tuple(ours["ids"]))
        self.assertGreater(len(answers), len(SIZES), "the answers depend on picture and prompt")
        ours = answer("model", "--image", "1.png", "--image", "0.png", "--prompt", "Which is larger?")
        self.expect_same_tokens(ours, model, inputs_of(self.processor, "Which is larger?", ["1.png", "0.png"]))


class Training(PaliGemma, picture_questions.Training, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
