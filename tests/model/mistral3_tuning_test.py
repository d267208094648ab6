"""The way of a Mistral Small 3.1, Ministral 3, Pixtral or LightOnOCR that is tuned: a Hugging Face folder is imported, trained in each way that there
is, and exported, and transformers has the same losses, gradient steps, floating-point operations and generated tokens.

usage: mistral3_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE FAMILY; exit 77 where the oracle's wheels are missing."""
import sys
import unittest

FAMILY = sys.argv.pop(3)

from picture_questions import engine, folder, make, run
from cell_tuning import CellPictures, ImageGeneration, ImageTraining, write_questions
from mistral3_processor import processor_of

# 4 x 3, 2 x 1, 3 x 8, 8 x 4 (shrunk to 60 pixels) and 5 x 5 cells; transformers cannot read an image of a single one by itself.
SIZES = [(32, 24), (16, 8), (17, 60), (64, 33), (40, 40)]


def setUpModule():
    words = make("make-mistral3", SIZES, 40, 1024, "--family", FAMILY)
    Mistral3.processor = processor_of(folder / "hf", words)
    (folder / "all.lua").write_text(write_questions(SIZES))


class Mistral3(CellPictures):
    sizes, end = SIZES, "</s>"

    def frames_in(self, inputs):
        return (inputs["image_sizes"] // 8).prod(1).sum().item()


class Generation(Mistral3, ImageGeneration, unittest.TestCase):
    processor_name = "LightOnOCR" if FAMILY == "lighton_ocr" else "Pixtral"
    has_limits = False

    def test_cells_of_another_size_than_the_encoders_are_refused(self):
        config = folder / "model" / "vision" / "processor_config.json"
        written = config.read_text()
        config.write_text(written.replace('"patch_size": ', '"patch_size": 1'))
        said = run(engine, "generate", "model", "--image", "0.png", "--prompt", "What?", code=4)
        config.write_text(written)
        self.assertIn("pixels do not fit the encoder, whose images consist of cells of 8 x 8", said)


class Training(Mistral3, ImageTraining, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
