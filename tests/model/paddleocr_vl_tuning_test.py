"""The way of a PaddleOCR-VL that is tuned: a Hugging Face folder is imported, trained in each way that there is, and exported, and transformers has
the same losses, gradient steps, floating-point operations and generated tokens.

usage: paddleocr_vl_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import unittest

from picture_questions import engine, folder, make, run
from cell_tuning import CellPictures, ImageGeneration, ImageTraining, write_questions
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil
from transformers.models.paddleocr_vl.processing_paddleocr_vl import PaddleOCRVLProcessor

SIZES = [(32, 24), (8, 8), (17, 60), (64, 33), (5, 11)]  # 4 x 3, 1, 2 x 8, 8 x 4 and, grown to the width of a cell, 1 x 2 cells


class Processor(PaddleOCRVLProcessor):
    """With the image processor that needs no torchvision."""

    def check_argument_for_proper_class(self, *_):
        pass


def setUpModule():
    words = make("make-paddleocr-vl", SIZES, 40, 1024)
    words.image_token, words.image_token_id = "<|IMAGE_PLACEHOLDER|>", words.convert_tokens_to_ids("<|IMAGE_PLACEHOLDER|>")
    PaddleOcrVl.processor = Processor(PaddleOCRVLImageProcessorPil.from_pretrained(folder / "hf"), words, chat_template=words.chat_template)
    (folder / "all.lua").write_text(write_questions(SIZES))


class PaddleOcrVl(CellPictures):
    sizes, end, decoder = SIZES, "</s>", "model.layers"

    def frames_in(self, inputs):
        return inputs["image_grid_thw"].prod(1).sum().item() // 4


class Generation(PaddleOcrVl, ImageGeneration, unittest.TestCase):
    processor_name = "PaddleOCR-VL"

    def test_an_image_processor_of_moments_is_refused(self):
        config = folder / "model" / "vision" / "preprocessor_config.json"
        written = config.read_text()
        config.write_text(written.replace('"temporal_patch_size": 1', '"temporal_patch_size": 2'))
        said = run(engine, "generate", "model", "--image", "0.png", "--prompt", "What?", code=4)
        config.write_text(written)
        self.assertIn("'temporal_patch_size' = 2", said)


class Training(PaddleOcrVl, ImageTraining, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
