"""The way of a GLM-OCR, GLM-4.1V or GLM-4.6V that is tuned: a Hugging Face folder is imported, trained in each way that there is, and exported, and transformers has the
same losses, gradient steps, floating-point operations and generated tokens.

usage: glm_ocr_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE FAMILY; exit 77 where the oracle's wheels are missing."""
import sys
import unittest

FAMILY = sys.argv.pop(3)

from picture_questions import folder, make
from cell_tuning import CellPictures, ImageGeneration, ImageTraining, write_questions
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor

SIZES = [(32, 24), (8, 8), (17, 60), (64, 33), (5, 11)]  # 4 x 3, 1, 2 x 8, 8 x 4 and, grown to the width of a cell, 1 x 2 cells


class Processor(Glm46VProcessor):
    """With the image processor that needs no torchvision, and none of videos."""

    def __init__(self, image_processor, tokenizer, chat_template):
        super().__init__(image_processor, tokenizer, None, chat_template)

    def check_argument_for_proper_class(self, *_):
        pass


def setUpModule():
    words = make("make-glm-ocr", SIZES, 40, 1024, "--family", FAMILY)
    images = Glm4vImageProcessorPil if FAMILY == "glm4v" else Glm46VImageProcessorPil
    GlmOcr.processor = Processor(images.from_pretrained(folder / "hf"), words, words.chat_template)
    (folder / "all.lua").write_text(write_questions(SIZES))


class GlmOcr(CellPictures):
    sizes, end, decoder = SIZES, "", "model.layers"
    begin = "<think></think>\n" if FAMILY == "glm46v" else ""

    def frames_in(self, inputs):
        return inputs["image_grid_thw"].prod(1).sum().item() // 4


class Generation(GlmOcr, ImageGeneration, unittest.TestCase):
    processor_name = "GLM-OCR"


class Training(GlmOcr, ImageTraining, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
