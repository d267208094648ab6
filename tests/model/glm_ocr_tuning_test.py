"""The way of a GLM-OCR, GLM-4.1V or GLM-4.6V that is tuned: a Hugging Face folder is imported, trained in each way that there is, and exported, and
transformers has the same losses, gradient steps, floating-point operations and generated tokens.

usage: glm_ocr_tuning_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE FAMILY; exit 77 where the oracle's wheels are missing."""
import sys
import unittest

FAMILY = sys.argv.pop(3)
HAS_VIDEOS = FAMILY != "glm_ocr"

from picture_questions import engine, folder, make, run
from cell_tuning import CellPictures, ImageGeneration, ImageTraining, VideoTraining, write_clip, write_questions, write_videos
from qwen2_vl_processor import VideoProcessor
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor

SIZES = [(32, 24), (8, 8), (17, 60), (64, 33), (5, 11)]  # 4 x 3, 1, 2 x 8, 8 x 4 and, grown to the width of a cell, 1 x 2 cells


def processor_of(words):
    """Which needs no torchvision."""
    base, images = (Glm4vProcessor, Glm4vImageProcessorPil) if FAMILY == "glm4v" else (Glm46VProcessor, Glm46VImageProcessorPil)
    kind, of_images = type("Processor", (base,), {"check_argument_for_proper_class": lambda *_: None}), images.from_pretrained(folder / "hf")
    return kind(of_images, words, VideoProcessor(of_images), words.chat_template)


def setUpModule():
    words = make("make-glm-ocr", SIZES, 40, 1024, "--family", FAMILY)
    Glm.processor = processor_of(words)
    questions = write_questions(SIZES)
    (folder / "all.lua").write_text(questions)
    write_videos(questions)


class Glm(CellPictures):
    sizes, end, decoder = SIZES, "", "model.layers"
    begin = "<think></think>\n" if FAMILY == "glm46v" else ""

    def frames_in(self, inputs):
        return inputs["image_grid_thw"].prod(1).sum().item() // 4


class Generation(Glm, ImageGeneration, unittest.TestCase):
    @unittest.skipIf(HAS_VIDEOS, "this model reads videos")
    def test_videos_are_refused(self):
        write_clip()
        said = run(engine, "generate", "model", "--video", "clip.gif", "--prompt", "What happens?", code=4)
        self.assertIn("the model's folder does not say how videos are prepared\n", said)


class Training(Glm, *[VideoTraining] * HAS_VIDEOS, ImageTraining, unittest.TestCase):
    video_row = "<|image|>"


if __name__ == "__main__":
    unittest.main()
