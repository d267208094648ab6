"""The way of a LLaVA-OneVision: a Hugging Face folder is imported, trained and exported, and transformers generates from image files the
tokens that the engine generates from them, of pictures that are shrunk and of videos, too.

usage: llava_onevision_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import unittest

import picture_questions
from picture_questions import Pictures, answer, engine, folder, loaded, make, torch, write_clip
from transformers.models.llava_onevision import processing_llava_onevision
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

SIZES = [(32, 32), (64, 60), (110, 120), (31, 75), (128, 128), (127, 95)]  # the third, the fifth and the sixth are shrunk


class LlavaOnevisionProcessor(processing_llava_onevision.LlavaOnevisionProcessor):
    """Without its processor of videos, which needs torchvision."""

    def check_argument_for_proper_class(self, *_):
        pass


def setUpModule():
    words = make("make-llava-next", SIZES, 17, 2048, "--onevision")
    LlavaOnevision.processor = LlavaOnevisionProcessor(LlavaOnevisionImageProcessorPil.from_pretrained(folder / "hf"), words, None,
                                                       num_image_tokens=16, vision_feature_select_strategy="full",
                                                       chat_template=words.chat_template)


class LlavaOnevision(Pictures):
    sizes, unused = SIZES, ("post_layernorm",)

    def frames_in(self, inputs):
        return inputs["pixel_values"].shape[1]


class Generation(LlavaOnevision, unittest.TestCase):
    def test_transformers_generates_the_same_tokens(self):
        self.check_every_picture()

    def test_a_video_has_frames_at_half_the_size(self):
        pictures = write_clip()
        pixels = SiglipImageProcessorPil(size={"height": 32, "width": 32})(pictures, return_tensors="pt")["pixel_values"][None]
        words, video = self.processor.tokenizer, self.processor.replace_video_token({"pixel_values_videos": pixels}, 0)
        inputs = words("USER: " + video + "\nWhat happens? ASSISTANT:", return_tensors="pt")
        inputs = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"], "pixel_values_videos": pixels}
        model = loaded("hf")
        with torch.no_grad():
            right = model.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False, eos_token_id=[])
        ours = answer("model", "--video", "clip.gif", "--prompt", "<video>\nWhat happens?")
        self.assertEqual(ours["ids"], right[0, inputs["input_ids"].shape[1]:].tolist())


class Training(LlavaOnevision, picture_questions.Training, unittest.TestCase):
    def test_limits_count_the_rows_that_are_read(self):
        open_packs = ["--set", "stages.sft.packing={}"]
        # A frame becomes 24 rows, of which the decoder, with 2,048 positions, reads 20 at most.
        said = picture_questions.run(engine, "plan", "recipe.lua", *open_packs, "--set", "stages.sft.data.max_frames=95")
        self.assertIn(" images tiles of 32 x 32 pixels ", " ".join(said.split()))
        refused = picture_questions.run(engine, "plan", "recipe.lua", *open_packs, "--set", "stages.sft.data.max_frames=100", code=3)
        self.assertIn("100 frames of 20 decoder rows each and 64 text tokens exceed the decoder's 2048 positions", refused)
        tried = picture_questions.run(engine, "train", "recipe.lua", *open_packs, "--find-batch", "--memory-mib", 200)
        self.assertIn("frames = ", tried)


if __name__ == "__main__":
    unittest.main()
