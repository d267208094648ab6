"""The way of a Granite Docling: a Hugging Face folder is imported, trained in each way that there is, and exported, and transformers has the same losses,
gradient steps and floating-point operations, and generates from image files the tokens that the engine generates from them, in the folder's own chat
template, with tiles and of several images.

usage: granite_docling_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import json
import shutil
import unittest

from picture_questions import PROMPTS, TOKENS, answer, engine, folder, inputs_of, loaded, make, run, write_clip
from cell_tuning import CellPictures, CellTraining, write_questions
from transformers.models.granite_docling.image_processing_pil_granite_docling import GraniteDoclingImageProcessorPil
from transformers.models.granite_docling.processing_granite_docling import GraniteDoclingProcessor

SIZES = [(32, 32), (64, 64), (120, 30), (31, 75), (200, 120)]  # 1 tile, and grids of 2 x 2, 1 x 4, 3 x 1 and 2 x 3


class Processor(GraniteDoclingProcessor):
    """With the image processor that needs no torchvision."""

    def check_argument_for_proper_class(self, *_):
        pass


def processor_with(words, **options):
    images = GraniteDoclingImageProcessorPil.from_pretrained(folder / "hf", **options)
    return Processor(images, words, image_seq_len=4, chat_template=words.chat_template)


def setUpModule():
    words = make("make-granite-docling", SIZES, 7, 512)
    GraniteDocling.processor = processor_with(words)
    (folder / "all.lua").write_text(write_questions(SIZES))


class GraniteDocling(CellPictures):
    sizes, end = SIZES, "<|end_of_text|>\n"
    unused, decoder = (".fine.",), "text_model"

    def frames_in(self, inputs):
        return inputs["pixel_values"].shape[1]


class Generation(GraniteDocling, unittest.TestCase):
    def test_transformers_generates_the_same_tokens(self):
        self.check_every_picture()

    def test_a_processor_that_does_not_cut_gives_one_square(self):
        shutil.copytree(folder / "hf", folder / "square")
        file = folder / "square/processor_config.json"
        config = json.loads(file.read_text())
        config["image_processor"]["crop_to_patches"] = False
        file.write_text(json.dumps(config))
        run(engine, "import", "--model", "square", "--out", "square.model")
        inputs = inputs_of(processor_with(self.processor.tokenizer, crop_to_patches=False), PROMPTS[0], ["4.png"])
        self.assertEqual(self.frames_in(inputs), 1)
        self.expect_same(answer("square.model", "--image", "4.png", "--prompt", PROMPTS[0]), loaded("hf"), inputs)

    def test_frames_of_a_video_are_images_that_are_not_cut(self):
        whole, pictures = processor_with(self.processor.tokenizer, crop_to_patches=False), write_clip()
        text = self.processor.apply_chat_template([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What happens?"}]}],
                                                  add_generation_prompt=True).replace("<image>", "<image>" * len(pictures))
        inputs = whole(text=text, images=[pictures], return_tensors="pt")
        self.expect_same(answer("model", "--video", "clip.gif", "--prompt", "What happens?"), loaded("hf"), inputs)

    def test_a_spread_is_cut_into_more_tiles(self):
        shutil.copytree(folder / "hf", folder / "spread")
        rule = {"max_patches": 2, "dense_max_patches": 6, "dense_max_scale": 0.5, "dense_min_aspect": 1.2}
        file = folder / "spread/processor_config.json"
        config = json.loads(file.read_text())
        config["image_processor"] |= rule
        file.write_text(json.dumps(config))
        run(engine, "import", "--model", "spread", "--out", "spread.model")
        for number, frames in ((4, 7), (3, 3)):
            inputs = inputs_of(processor_with(self.processor.tokenizer, **rule), PROMPTS[0], [f"{number}.png"])
            self.assertEqual(self.frames_in(inputs), frames)
            self.expect_same(answer("spread.model", "--image", f"{number}.png", "--prompt", PROMPTS[0]), loaded("hf"), inputs)

    def test_special_tokens_are_read_and_shown_on_request(self):
        words, shown = self.processor.tokenizer, set()
        for number, prompt in enumerate(("<doctag> Which number?", "Which number<doctag>", "<image>A <doctag>", "<doctag><doctag>", "Which?")):
            picture = f"{number}.png"
            inputs = inputs_of(self.processor, prompt, [picture])
            ours = answer("model", "--image", picture, "--prompt", prompt, "--special-tokens")
            self.expect_same(ours, loaded("hf"), inputs)
            special = set(words.all_special_ids) | set(words.added_tokens_decoder)
            shown |= special & set(ours["ids"]) - {words.eos_token_id}
            self.assertEqual(ours["text"], words.decode([id for id in ours["ids"] if id != words.eos_token_id], skip_special_tokens=False))
            (folder / "asked.jsonl").write_text(json.dumps({"user": prompt, "images": [picture]}) + "\n")
            (folder / "answers.jsonl").unlink(missing_ok=True)
            run(engine, "generate", "model", "--data", "asked.jsonl", "--answers", "answers.jsonl", "--max-tokens", TOKENS, "--ignore-eos", "--special-tokens")
            self.assertEqual(json.loads((folder / "answers.jsonl").read_text())["answer"], ours["text"])
        self.assertGreater(len(shown), 0, "some answer has a special token")
        usual = answer("model", "--image", "0.png", "--prompt", "<doctag> Which number?")
        self.assertGreater(usual["prompt"], len("<doctag> Which number?"))


class Training(GraniteDocling, CellTraining, unittest.TestCase):
    def test_steps_are_those_of_transformers(self):
        self.expect_steps_of_transformers("all", self.mean_loss, 0.9)


if __name__ == "__main__":
    unittest.main()
