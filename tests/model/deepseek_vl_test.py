"""The way of a DeepSeek-VL: a Hugging Face folder is imported, trained in each way that there is, and exported, and transformers has the same losses and
gradient steps, and generates from image files the tokens that the engine generates from them.

usage: deepseek_vl_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import unittest

from picture_questions import folder, make
from cell_tuning import CellPictures, CellTraining, write_questions
from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import DeepseekVLImageProcessorPil
from transformers.models.deepseek_vl.processing_deepseek_vl import DeepseekVLProcessor

SIZES = [(32, 32), (64, 60), (120, 30), (31, 75), (200, 12)]  # the last one's height becomes that of a patch


class Processor(DeepseekVLProcessor):
    """With the image processor that needs no torchvision."""

    def check_argument_for_proper_class(self, *_):
        pass


def setUpModule():
    words = make("make-deepseek-vl", SIZES, 2, 512)
    DeepseekVl.processor = Processor(DeepseekVLImageProcessorPil.from_pretrained(folder / "hf"), words, words.chat_template, num_image_tokens=16)
    (folder / "all.lua").write_text(write_questions(SIZES))


class DeepseekVl(CellPictures):
    sizes, end, unused = SIZES, "<end>", ("vision_model.head.",)

    def frames_in(self, inputs):
        return len(inputs["pixel_values"])


class Generation(DeepseekVl, unittest.TestCase):
    def test_transformers_generates_the_same_tokens(self):
        self.check_every_picture()


class Training(DeepseekVl, CellTraining, unittest.TestCase):
    def uncounted(self, counted):
        """That of the pooling head, forward: its linears and its attention."""
        return sum(sum(counts.values()) for name, counts in counted.get_flop_counts().items() if name.endswith("vision_model.head"))

    def test_steps_are_those_of_transformers(self):
        self.expect_steps_of_transformers("all", self.mean_loss, 0.9)


if __name__ == "__main__":
    unittest.main()
