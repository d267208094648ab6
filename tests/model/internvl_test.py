"""The way of an InternVL: a Hugging Face folder is imported, trained and exported, and transformers generates from image files the tokens
that the engine generates from them, in the folder's own chat template, with tiles, of several images and of a video.

usage: internvl_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import json
import shutil
import unittest

import picture_questions
from picture_questions import (PROMPTS, TOKENS, Image, Pictures, answer, draw_picture, engine, folder, inputs_of, load_file, loaded,
                               make, run, write_clip)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.internvl import processing_internvl

SIZES = [(32, 32), (64, 64), (120, 30), (31, 75), (200, 120)]  # 1, 4, 4, 3 and 2 tiles


class InternVLProcessor(processing_internvl.InternVLProcessor):
    """Without its processor of videos, which needs torchvision."""

    def check_argument_for_proper_class(self, *_):
        pass


def setUpModule():
    words = make("make-internvl", SIZES, 5, 512)
    InternVL.processor = InternVLProcessor(GotOcr2ImageProcessorPil.from_pretrained(folder / "hf"), words, None, image_seq_length=4,
                                           chat_template=words.chat_template)


class InternVL(Pictures):
    sizes = SIZES

    def frames_in(self, inputs):
        return len(inputs["pixel_values"])


class Generation(InternVL, unittest.TestCase):
    def test_transformers_generates_the_same_tokens(self):
        self.check_every_picture()

    def test_a_video_has_a_labelled_frame_a_second_and_no_tiles(self):
        pictures = write_clip()
        pixels = self.processor.image_processor(pictures, return_tensors="pt")["pixel_values"]  # which by itself does not cut them
        shown = self.processor.replace_video_token({"pixel_values_videos": [pixels]}, 0)
        text = self.processor.apply_chat_template([{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What happens?"}]}],
                                             add_generation_prompt=True).replace("<video>", shown)
        inputs = dict(self.processor.tokenizer(text, return_tensors="pt")) | {"pixel_values": pixels}
        ours = answer("model", "--video", "clip.gif", "--prompt", "What happens?")
        self.expect_same(ours, loaded("hf"), inputs)

    def test_a_gif_that_is_shown_as_an_image_is_its_first_frame(self):
        frames = [draw_picture(number, (64, 64)).quantize(64) for number in range(3)]
        frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:], duration=500)
        with Image.open(folder / "moving.gif") as moving:
            moving.convert("RGB").save(folder / "first.png")
        still, first = (answer("model", "--image", name, "--prompt", PROMPTS[0]) for name in ("moving.gif", "first.png"))
        self.assertEqual((still["ids"], still["frames"]), (first["ids"], first["frames"]))

    def test_evaluations_end_answers_where_generation_does(self):
        """As of SmolVLM's folder, whose generation_config.json alone has the token that ends a turn."""
        shutil.copytree(folder / "model", folder / "ends")
        asked = ["--image", "0.png", "--prompt", "Which number?", "--max-tokens", TOKENS, "--json"]
        free = json.loads(run(engine, "generate", "ends", *asked, "--ignore-eos"))["ids"]
        (folder / "ends/decoder/generation_config.json").write_text(json.dumps({"eos_token_id": free[2]}))
        ended = json.loads(run(engine, "generate", "ends", *asked))
        self.assertLess(len(ended["ids"]), TOKENS)
        sets = 'evaluation = { fvlm.evaluation "asked" { data = fvlm.mix { { "questions.tar" }, chat_template = "default", system = "", ' \
               'max_frames = 5, max_text_tokens = 64 }, measure = "answer", show = 12 } }, batch'
        (folder / "asked.lua").write_text((folder / "recipe.lua").read_text().replace('"model"', '"ends"').replace("batch", sets))
        run(engine, "eval", "asked.lua", "--model", "ends", "--show", "shown")
        shown = [json.loads(path.read_text()) for path in (folder / "shown/sft/asked").glob("*.json")]
        said, = [sample["answer"] for sample in shown if sample["expected"] == "It is 0."]
        self.assertEqual(said.strip(), ended["text"].strip())

    def test_a_processor_that_does_not_cut_gives_one_square(self):
        whole = folder / "square"
        run(engine, "export", "model", "--huggingface", "--out", whole)
        (whole / "processor_config.json").unlink()
        run(engine, "import", "--model", whole, "--out", "square.model")
        inputs = inputs_of(self.processor, PROMPTS[0], ["0.png"]) | {"pixel_values": self.processor.image_processor(
            Image.open(folder / "4.png"), return_tensors="pt")["pixel_values"]}
        self.expect_same(answer("square.model", "--image", "4.png", "--prompt", PROMPTS[0]), loaded("hf"), inputs)

    def test_a_folder_in_the_form_of_transformers_4(self):
        """As InternVL3's are published: the head is tied by the text's config, positions are scaled beyond the longest text."""
        older = folder / "older"
        shutil.copytree(folder / "hf", older)
        config = json.loads((older / "config.json").read_text())
        del config["tie_word_embeddings"]
        text = config["text_config"]
        text |= {"rope_theta": text.pop("rope_parameters")["rope_theta"], "tie_word_embeddings": True,
                 "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}}
        (older / "config.json").write_text(json.dumps(config))
        images = json.loads((older / "preprocessor_config.json").read_text())
        images |= {"image_processor_type": "GotOcr2ImageProcessorFast", "processor_class": "InternVLProcessor", "default_to_square": True,
                   "data_format": "channels_first"} | dict.fromkeys(("crop_size", "device", "disable_grouping", "do_center_crop"))
        (older / "preprocessor_config.json").write_text(json.dumps(images))
        run(engine, "import", "--model", older, "--out", "older.model")
        for number in (0, 4):
            ours = answer("older.model", "--image", f"{number}.png", "--prompt", PROMPTS[0])
            self.expect_same(ours, loaded("older"), inputs_of(self.processor, PROMPTS[0], [f"{number}.png"]))


class Training(InternVL, picture_questions.Training, unittest.TestCase):
    def test_adapters_of_the_encoder_train_resume_and_merge(self):
        """Its modules are called in its folder as DINOv2's are in transformers, and go to PEFT's form and back unchanged."""
        options = ["--set", "model.adapters=[{\"parts\":[\"vision\"],\"rank\":2,\"targets\":[\"q\",\"v\",\"o\"]}]", "--run-dir", "seen"]
        run(engine, "train", "lora.lua", *options, "--max-steps", 3)
        run(engine, "train", "lora.lua", *options)
        said = run(engine, "lora", "export", "seen", "--out", "seen.peft", code=4)
        self.assertIn("was trained beside the adapters, and PEFT cannot save it with them", said)
        run(engine, "lora", "export", "seen", "--part", "vision", "--out", "seen.peft")
        names = load_file(folder / "seen.peft" / "adapter_model.safetensors")
        self.assertEqual({name.split(".lora_")[0] for name in names},
                         {f"base_model.model.encoder.layer.{layer}.attention.{module}" for layer in (0, 1)
                          for module in ("q_proj", "v_proj", "projection_layer")})
        run(engine, "lora", "merge", "seen", "--out", "seen.merged")
        run(engine, "export", "seen.merged", "--huggingface", "--out", "seen.hf")
        self.expect_trained("seen", "seen.hf", 3)


if __name__ == "__main__":
    unittest.main()
