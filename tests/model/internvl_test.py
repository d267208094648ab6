"""The way of an InternVL: a Hugging Face folder is imported, trained and exported, and transformers generates from image files the tokens
that the engine generates from them, in the folder's own chat template, with tiles, of several images and of a video.

usage: internvl_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import unittest

from against_oracle import engine, folder, load_file, save_file, tool, torch
from byte_tokenizer import tokenizer

os.environ |= {"HF_HUB_OFFLINE": "1", "FVLM_CACHE": str(folder / "cache")}
try:
    from PIL import Image, ImageDraw
    from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.internvl import processing_internvl
    from transformers.utils import logging
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

logging.disable_progress_bar()
SIZES = [(32, 32), (64, 64), (120, 30), (31, 75), (200, 120)]  # 1, 4, 4, 3 and 2 tiles
PROMPTS = ["Which colour is it?", "<image>Which shape is it?", "Is this <image> a circle?"]
TOKENS = 8
RECIPE = """
local fvlm = require "fvlm"
return fvlm.recipe {
  name = "internvl", precision = "fp32",
  model = fvlm.model { directory = "model" ADAPTERS },
  fvlm.stage "sft" {
    data = fvlm.mix { { "questions.tar" }, chat_template = "default", system = "", max_frames = 5, max_text_tokens = 64 },
    objective = fvlm.next_token { on = "answer" }, optimizer = fvlm.adamw { lr = 1e-3 }, schedule = fvlm.constant {},
    batch = 8, samples = 48, packing = { frames = 40, tokens = 512, segments = 8 },
  },
}
"""


class InternVLProcessor(processing_internvl.InternVLProcessor):
    """Without its processor of videos, which needs torchvision."""

    def check_argument_for_proper_class(self, *_):
        pass


def run(*command, code=0):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=folder)
    assert result.returncode == code, f"{command} ended with {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stderr if code else result.stdout


def draw_picture(number, size):
    """A disk on a ground with a gradient, so that every tile differs."""
    width, height = size
    red = Image.linear_gradient("L").resize(size)
    picture = Image.merge("RGB", (red, red.rotate(180), Image.new("L", size, 60 * number % 256)))
    ImageDraw.Draw(picture).ellipse((width // 4, height // 4, width // 2, height // 2), fill=(255 - 50 * number, 40 * number, 90))
    return picture


def strengthen(path):
    """Weights that matter: those of a new model are so small that it says the same about every picture."""
    generator = torch.Generator().manual_seed(5)
    tensors = {name: torch.randn(tensor.shape, generator=generator) * 1.2 / tensor[0].numel() ** 0.5 if tensor.dim() > 1 else tensor
               for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def write_questions():
    with tarfile.open(folder / "questions.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(12):
            picture = io.BytesIO()
            draw_picture(number, SIZES[number % len(SIZES)]).save(picture, "png")
            text = json.dumps({"user": "<image>Which number?", "assistant": f"It is {number}."}).encode()
            for suffix, content in (("png", picture.getvalue()), ("json", text)):
                entry = tarfile.TarInfo(f"{number:03}.{suffix}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def setUpModule():
    global processor
    (folder / "words").mkdir()
    words = json.loads(tokenizer())
    for part in ("pre_tokenizer", "decoder"):  # as the package tokenizers, which adds tokens to it, wants them
        words[part] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "words" / "tokenizer.json").write_text(json.dumps(words))
    tool("make-internvl", folder / "hf", "--tokenizer", folder / "words")
    strengthen(folder / "hf" / "model.safetensors")
    run(engine, "import", "--model", "hf", "--out", "model")
    write_questions()
    for name, adapters in (("recipe.lua", ""), ("lora.lua", ", adapters = fvlm.lora { rank = 4, alpha = 8, targets = 'all' }")):
        (folder / name).write_text(RECIPE.replace("ADAPTERS", adapters))
    words = PreTrainedTokenizerFast.from_pretrained(folder / "hf")
    processor = InternVLProcessor(GotOcr2ImageProcessorPil.from_pretrained(folder / "hf"), words, None, image_seq_length=4,
                                  chat_template=words.chat_template)
    for number, size in enumerate(SIZES):
        draw_picture(number, size).save(folder / f"{number}.png")


def inputs_of(prompt, pictures):
    """What transformers' processor makes of a question about image files, which come first unless the prompt says where."""
    content = []
    for place, text in enumerate((prompt if "<image>" in prompt else "<image>" * len(pictures) + prompt).split("<image>")):
        content += [{"type": "image"}] * (place > 0) + [{"type": "text", "text": text}] * bool(text)
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return processor(text=text, images=[Image.open(folder / picture) for picture in pictures], return_tensors="pt")


def generated(model, inputs, **options):
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False, **options)
    return ids[0, inputs["input_ids"].shape[1]:].tolist()


def answer(model, *options):
    return json.loads(run(engine, "generate", model, *options, "--max-tokens", TOKENS, "--ignore-eos", "--json"))


def loaded(path):
    return AutoModelForImageTextToText.from_pretrained(folder / path).eval()


class Generation(unittest.TestCase):
    def expect_same(self, ours, model, inputs):
        self.assertEqual(ours["frames"], len(inputs["pixel_values"]))
        rows = (inputs["input_ids"] == processor.image_token_id).sum().item()
        self.assertEqual(ours["prompt"] + rows, inputs["input_ids"].shape[1])
        self.assertEqual(ours["ids"], generated(model, inputs, min_new_tokens=TOKENS, eos_token_id=[]))

    def test_transformers_generates_the_same_tokens(self):
        model, answers = loaded("hf"), set()
        for number, size in enumerate(SIZES):
            for prompt in PROMPTS:
                with self.subTest(prompt, size=size):
                    ours = answer("model", "--image", f"{number}.png", "--prompt", prompt)
                    self.expect_same(ours, model, inputs_of(prompt, [f"{number}.png"]))
                    answers.add(tuple(ours["ids"]))
        self.assertGreater(len(answers), len(SIZES), "the answers depend on picture and prompt")

    def test_a_video_has_a_labelled_frame_a_second_and_no_tiles(self):
        frames = [draw_picture(number, (90, 50)).quantize(64) for number in range(3)]
        frames[0].save(folder / "clip.gif", save_all=True, append_images=frames[1:], duration=1000)
        with Image.open(folder / "clip.gif") as clip:
            pictures = [clip.seek(place) or clip.convert("RGB") for place in range(3)]
        pixels = processor.image_processor(pictures, return_tensors="pt")["pixel_values"]  # which by itself does not cut them
        shown = processor.replace_video_token({"pixel_values_videos": [pixels]}, 0)
        text = processor.apply_chat_template([{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What happens?"}]}],
                                             add_generation_prompt=True).replace("<video>", shown)
        inputs = dict(processor.tokenizer(text, return_tensors="pt")) | {"pixel_values": pixels}
        ours = answer("model", "--video", "clip.gif", "--prompt", "What happens?")
        self.expect_same(ours, loaded("hf"), inputs)

    def test_a_processor_that_does_not_cut_gives_one_square(self):
        whole = folder / "square"
        run(engine, "export", "model", "--huggingface", "--out", whole)
        (whole / "processor_config.json").unlink()
        run(engine, "import", "--model", whole, "--out", "square.model")
        inputs = inputs_of(PROMPTS[0], ["0.png"]) | {"pixel_values": processor.image_processor(Image.open(folder / "4.png"),
                                                                                            return_tensors="pt")["pixel_values"]}
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
            self.expect_same(ours, loaded("older"), inputs_of(PROMPTS[0], [f"{number}.png"]))


class Training(unittest.TestCase):
    def test_a_trained_model_goes_back_and_answers_the_same(self):
        run(engine, "train", "recipe.lua", "--run-dir", "run")
        run(engine, "export", "run", "--huggingface", "--out", "trained")
        before, after = (load_file(folder / name / "model.safetensors") for name in ("hf", "trained"))
        self.assertEqual(set(before), set(after))
        for name, tensor in before.items():
            self.assertFalse(torch.equal(tensor, after[name]), name)
        model = loaded("trained")
        for number in (0, 4):
            inputs = inputs_of("Which number?", [f"{number}.png"])
            ours = answer("run", "--image", f"{number}.png", "--prompt", "Which number?")
            self.assertEqual(ours["ids"], generated(model, inputs, min_new_tokens=TOKENS, eos_token_id=[]))

    def test_adapters_of_the_decoder_train_alone_and_merge(self):
        run(engine, "train", "lora.lua", "--set", "stages.sft.freeze=[\"vision\",\"connector\"]", "--run-dir", "adapted")
        run(engine, "lora", "merge", "adapted", "--out", "merged")
        run(engine, "export", "merged", "--huggingface", "--out", "merged.hf")
        before, after = (load_file(folder / name / "model.safetensors") for name in ("hf", "merged.hf"))
        changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
        self.assertEqual(changed, {name for name in before if "_proj.weight" in name and "language_model" in name})
        inputs = inputs_of("Which number?", ["3.png"])
        ours = answer("merged", "--image", "3.png", "--prompt", "Which number?")
        self.assertEqual(ours["ids"], generated(loaded("merged.hf"), inputs, min_new_tokens=TOKENS, eos_token_id=[]))

    def test_planned_memory_is_what_a_step_holds(self):
        """find-batch takes steps of the recipe's own pack first, and measures what their tensors hold."""
        budget, = json.loads(run(engine, "plan", "recipe.lua", "--budget", "--json"))
        planned = budget["memory"]["sum"]
        found, = json.loads(run(engine, "train", "recipe.lua", "--find-batch", "--stage", "sft", "--memory-mib", planned * 5 // 4 // 2**20,
                                "--json"))
        held = found["tries"][0]["peak_bytes"]
        print(f"internvl: {planned} bytes planned, {held} held, ratio {planned / held:.3f}")
        self.assertAlmostEqual(planned / held, 1, delta=0.1)


if __name__ == "__main__":
    unittest.main()
