"""The way of a HunyuanOCR that is tuned: a Hugging Face folder is imported, trained in each way that there is, and exported, and transformers has the
same losses, gradient steps, floating-point operations and generated tokens.

usage: hunyuan_ocr_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import unittest

from picture_questions import folder, inputs_of, make
from cell_tuning import SAMPLES, WIDTH, CellPictures, ImageGeneration, ImageTraining, write_questions
from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil
from transformers.models.hunyuan_vl.processing_hunyuan_vl import HunYuanVLProcessor

SIZES = [(32, 24), (8, 8), (17, 60), (64, 33), (5, 11)]  # 4 x 3, 1, 2 x 8, 8 x 4 and 1 x 1 cells


class Processor(HunYuanVLProcessor):
    """With the image processor that needs no torchvision."""

    def check_argument_for_proper_class(self, *_):
        pass


def setUpModule():
    words = make("make-hunyuan-ocr", SIZES, 40, 1024)
    HunyuanOcr.processor = Processor(HunYuanVLImageProcessorPil.from_pretrained(folder / "hf"), words, words.chat_template)
    (folder / "all.lua").write_text(write_questions(SIZES))


class HunyuanOcr(CellPictures):
    sizes, end, decoder = SIZES, "<｜hy_Assistant｜>", "model.layers"
    unused = ("image_sep",)

    def frames_in(self, inputs):
        return inputs["image_grid_thw"].prod(1).sum().item() // 4


class Generation(HunyuanOcr, ImageGeneration, unittest.TestCase):
    processor_name = "HunyuanOCR"


class Training(HunyuanOcr, ImageTraining, unittest.TestCase):
    def uncounted(self, counted):
        """The rows of newlines, one for each line of cells, which the engine makes once for all images."""
        lines = sum(inputs_of(self.processor, "?", [f"question-{number}.png"])["image_grid_thw"][0, 1].item() // 2 for number in range(SAMPLES))
        made, width = 4 * 32, WIDTH
        return 3 * lines * 2 * made * width


if __name__ == "__main__":
    unittest.main()
