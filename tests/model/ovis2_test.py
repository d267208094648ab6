"""The way of an Ovis2: a Hugging Face folder is imported, trained in each way that there is, and exported, and transformers has the same losses, gradient
steps and floating-point operations, and generates from image files the tokens that the engine generates from them, in the folder's own chat template, with
tiles and of several images.

usage: ovis2_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import json
import shutil
import unittest

from picture_questions import PROMPTS, TOKENS, answer, engine, folder, generated, inputs_of, loaded, make, run, write_clip
from cell_tuning import CellPictures, CellTraining, write_questions
from transformers.models.ovis2.image_processing_pil_ovis2 import Ovis2ImageProcessorPil
from transformers.models.ovis2.processing_ovis2 import Ovis2Processor

SIZES = [(32, 32), (64, 64), (120, 30), (31, 75), (90, 60)]  # 1 tile, and grids of 2 x 2, 4 x 1, 1 x 2 and 3 x 2


class Processor(Ovis2Processor):
    """With the image processor that needs no torchvision."""

    def check_argument_for_proper_class(self, *_):
        pass


def setUpModule():
    words = make("make-ovis2", SIZES, 7, 512)
    Ovis2.processor = Processor(Ovis2ImageProcessorPil.from_pretrained(folder / "hf"), words, words.chat_template, image_seq_length=4)
    (folder / "all.lua").write_text(write_questions(SIZES))
    for recipe in folder.glob("*.lua"):  # the template begins each text with a system turn
        recipe.write_text(recipe.read_text().replace("max_text_tokens = 64", "max_text_tokens = 160"))


class Ovis2(CellPictures):
    sizes, end = SIZES, "<|im_end|>\n"

    def frames_in(self, inputs):
        return len(inputs["pixel_values"])

    def expect_same_tokens(self, ours, model, inputs):
        """All tokens of an image are rows here, also those around its tiles."""
        rows = (inputs["input_ids"] >= model.config.image_token_id).sum().item()
        self.assertEqual(ours["prompt"] + rows, inputs["input_ids"].shape[1])
        self.assertEqual(ours["ids"], generated(model, inputs, min_new_tokens=TOKENS, eos_token_id=[]))


class Generation(Ovis2, unittest.TestCase):
    def test_transformers_generates_the_same_tokens(self):
        self.check_every_picture()

    def test_a_processor_that_does_not_cut_gives_one_square(self):
        shutil.copytree(folder / "hf", folder / "square")
        images = json.loads((folder / "square/preprocessor_config.json").read_text())
        (folder / "square/preprocessor_config.json").write_text(json.dumps(images | {"crop_to_patches": False}))
        run(engine, "import", "--model", "square", "--out", "square.model")
        whole = Processor(Ovis2ImageProcessorPil.from_pretrained(folder / "square"), self.processor.tokenizer, self.processor.chat_template, image_seq_length=4)
        inputs = inputs_of(whole, PROMPTS[0], ["4.png"])
        self.assertEqual(self.frames_in(inputs), 1)
        self.expect_same(answer("square.model", "--image", "4.png", "--prompt", PROMPTS[0]), loaded("hf"), inputs)

    def test_frames_of_a_video_are_images_that_are_not_cut(self):
        whole = Ovis2ImageProcessorPil.from_pretrained(folder / "hf", crop_to_patches=False)
        pictures = write_clip()
        text = self.processor.apply_chat_template([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What happens?"}]}],
                                                  add_generation_prompt=True).replace("<image>", "<image>" * len(pictures))
        inputs = Processor(whole, self.processor.tokenizer, image_seq_length=4)(text=text, images=[pictures], return_tensors="pt")
        self.expect_same(answer("model", "--video", "clip.gif", "--prompt", "What happens?"), loaded("hf"), inputs)


class Training(Ovis2, CellTraining, unittest.TestCase):
    def test_steps_are_those_of_transformers(self):
        self.expect_steps_of_transformers("all", self.mean_loss, 0.9)


if __name__ == "__main__":
    unittest.main()
