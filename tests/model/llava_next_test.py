"""The way of a LLaVA-NeXT: a Hugging Face folder is imported, trained and exported, and transformers generates from image files the tokens
that the engine generates from them, whose number of rows depends on an image's size; with --granite that of a Granite Vision.

usage: llava_next_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE [--granite]; exit 77 where the oracle's wheels are missing."""
import json
import shutil
import sys
import unittest

import picture_questions
from picture_questions import Pictures, draw_picture, engine, folder, make, metrics, run
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

OPTIONS = [sys.argv.pop()] if sys.argv[-1] == "--granite" else []
SIZES = [(32, 32), (64, 64), (120, 30), (31, 75), (200, 120), (300, 20)]  # grids of 1 x 2, 2 x 2, 1 x 3, 2 x 1, 2 x 2 and 1 x 3


def setUpModule():
    words = make("make-llava-next", SIZES, 5, 1024, *OPTIONS)
    strategy = {"vision_feature_select_strategy": "full" if OPTIONS else "default", "num_additional_image_tokens": 0 if OPTIONS else 1}
    LlavaNext.processor = LlavaNextProcessor(LlavaNextImageProcessorPil.from_pretrained(folder / "hf"), words, patch_size=8,
                                             chat_template=words.chat_template, **strategy)


class LlavaNext(Pictures):
    sizes, unused = SIZES, ("post_layernorm",) if OPTIONS else ("encoder.layers.2.", "post_layernorm")

    def frames_in(self, inputs):
        return inputs["pixel_values"].shape[1]


class Generation(LlavaNext, unittest.TestCase):
    def test_transformers_generates_the_same_tokens(self):
        self.check_every_picture()


class Training(LlavaNext, picture_questions.Training, unittest.TestCase):
    def test_decoder_tokens_are_those_of_the_images_sizes(self):
        run(engine, "train", "recipe.lua", "--run-dir", "counted")
        last, pictures = metrics("counted")[-1], [draw_picture(number, SIZES[number % len(SIZES)]) for number in range(12)]
        visual = sum((self.processor(text="<image>", images=[picture], return_tensors="pt")["input_ids"] == self.processor.image_token_id)
                     .sum().item() for picture in pictures) * 4
        self.assertEqual(last["decoder_tokens"] - last["text_tokens"], visual)


@unittest.skipIf(OPTIONS, "they are of the other form")
class WrongFolders(unittest.TestCase):
    def refused(self, *words, config=None, images=None):
        changed = folder / "changed"
        shutil.rmtree(changed, ignore_errors=True)
        shutil.copytree(folder / "hf", changed)
        for file, change in (("config.json", config), ("preprocessor_config.json", images)):
            content = json.loads((changed / file).read_text())
            if change:
                change(content)
            (changed / file).write_text(json.dumps(content))
        said = run(engine, "import", "--model", changed, "--out", folder / "refused", code=4)
        for word in words:
            self.assertIn(word, said)
        self.assertFalse((folder / "refused").exists())

    def test_a_processor_that_does_not_cut(self):
        self.refused("there is no image processor that cuts them", "copy preprocessor_config.json",
                     images=lambda one: (one.clear(), one.update(image_processor_type="CLIPImageProcessor", size=32, crop_size=32)))

    def test_other_grids_than_the_models(self):
        self.refused("'image_grid_pinpoints' is [[32,64]] in config.json and [[32,64],[64,32]", "of the same model",
                     config=lambda one: one.update(image_grid_pinpoints=[[32, 64]]))

    def test_tiles_of_another_size_than_the_encoders(self):
        self.refused("tiles have 16 pixels a side, and the encoder of config.json reads 32",
                     images=lambda one: one.update(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}))

    def test_a_class_token_among_the_patches(self):
        self.refused("'vision_feature_select_strategy' = \"full\"", "the class token is no part of a square of patches",
                     config=lambda one: one.update(vision_feature_select_strategy="full"))

    def test_a_connector_without_newlines(self):
        recipe = (folder / "recipe.lua").read_text().replace('directory = "model"', 'vision = "model/vision", decoder = "model/decoder", connector = fvlm.mlp {}')
        (folder / "without.lua").write_text(recipe)
        said = run(engine, "train", "without.lua", "--run-dir", "without", code=4)
        self.assertIn("the connector makes 16 rows of a frame", said)
        self.assertIn("fvlm.mlp { newline = true }", said)


if __name__ == "__main__":
    unittest.main()
