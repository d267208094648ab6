"""The way of a Qianfan-OCR: a Hugging Face folder is imported, trained and exported, and transformers generates from image files the tokens
that the engine generates from them, in the folder's own chat template, with tiles and of several images.

usage: qianfan_ocr_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import unittest

import picture_questions
from picture_questions import Pictures, folder, make
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.qianfan_ocr import processing_qianfan_ocr

SIZES = [(32, 32), (64, 64), (120, 30), (31, 75), (200, 120)]  # 1, 4, 4, 3 and 2 tiles


class QianfanOCRProcessor(processing_qianfan_ocr.QianfanOCRProcessor):
    """With an image processor that needs no torchvision."""

    def check_argument_for_proper_class(self, *_):
        pass


def setUpModule():
    words = make("make-internvl", SIZES, 5, 512, "--family", "qianfan_ocr")
    QianfanOcr.processor = QianfanOCRProcessor(GotOcr2ImageProcessorPil.from_pretrained(folder / "hf"), words, image_seq_length=4,
                                               chat_template=words.chat_template)


class QianfanOcr(Pictures):
    sizes = SIZES

    def frames_in(self, inputs):
        return len(inputs["pixel_values"])


class Generation(QianfanOcr, unittest.TestCase):
    def test_transformers_generates_the_same_tokens(self):
        self.check_every_picture()


class Training(QianfanOcr, picture_questions.Training, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
