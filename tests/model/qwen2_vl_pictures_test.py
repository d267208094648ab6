"""What Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and LFM3-VL answer about picture files and videos beside transformers with its processor and the folder's own chat
template.

usage: qwen2_vl_pictures_test.py FVLM_ENGINE CHAT_TEMPLATE; exit 77 where transformers is missing."""
import itertools
import json
import pathlib
import shutil
import sys
import unittest

from byte_tokenizer import tokenizer
from with_transformers import draw, engine, folder, run
from qwen2_vl_processor import processor_of

import torch
from safetensors.torch import save_file
from PIL import Image, ImageDraw
from transformers import (Lfm3VlConfig, Lfm3VlForConditionalGeneration, PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2VLConfig,
                          Qwen2VLForConditionalGeneration, Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3VLConfig,
                          Qwen3VLForConditionalGeneration)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TOKENS = {"vision_start_token_id": 259, "vision_end_token_id": 260, "image_token_id": 261, "video_token_id": 262}
TEXT = {"vocab_size": 263, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 1024, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 258,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 3, 2]}}
MODELS = {
    "qwen2_vl": (Qwen2VLForConditionalGeneration, Qwen2VLConfig(
        text_config=dict(TEXT), **TOKENS, vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2, "num_heads": 2})),
    "qwen2_5_vl": (Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig(
        text_config=dict(TEXT), **TOKENS,
        vision_config={"depth": 2, "hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 40, "num_heads": 2,
                       "fullatt_block_indexes": [1], "window_size": 56})),
    "qwen3_vl": (Qwen3VLForConditionalGeneration, Qwen3VLConfig(
        text_config=TEXT | {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2],
                                                                "mrope_interleaved": True}},
        **TOKENS, vision_config={"depth": 3, "hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 40, "num_heads": 2,
                                 "num_position_embeddings": 49, "deepstack_visual_indexes": [0, 1]})),
    "qwen3_5": (Qwen3_5ForConditionalGeneration, Qwen3_5Config(
        text_config=TEXT | {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
                            "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
                            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2],
                                                "mrope_interleaved": True, "partial_rotary_factor": 1.0}},
        **TOKENS, vision_config={"depth": 2, "hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 40, "num_heads": 2,
                                 "num_position_embeddings": 49})),
    "lfm3_vl": (Lfm3VlForConditionalGeneration, Lfm3VlConfig(
        text_config={key: value for key, value in TEXT.items() if key != "rope_parameters"} | {
            "model_type": "lfm3", "head_dim": 16, "layer_types": ["sliding_attention", "conv"], "sliding_window": 20}, **TOKENS,
        projector_hidden_size=40, vision_config={"num_hidden_layers": 3, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 2,
                                                 "num_key_value_heads": 1})),
}
IMAGES = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
          "min_pixels": 3136, "max_pixels": 28 * 28 * 24}
OWN_IMAGES = {"qwen3_vl": {"patch_size": 16, "min_pixels": 4096, "max_pixels": 32 * 32 * 24, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}}
OWN_IMAGES["qwen3_5"] = OWN_IMAGES["lfm3_vl"] = OWN_IMAGES["qwen3_vl"]
# Without a file of its own, videos have the limits of images.
QWEN3_VIDEOS = OWN_IMAGES["qwen3_vl"] | {"video_processor_type": "Qwen3VLVideoProcessor", "max_pixels": 32 * 32 * 200}
SIZES = [(60, 90), (301, 77), (28, 28), (200, 190)]  # the second and the last are shrunk
LENGTH = 10
TEMPLATE = pathlib.Path(sys.argv.pop(1))


def make(name, template):
    kind, config = MODELS[name]
    torch.manual_seed(1)
    model = kind(config).eval()
    draw(model)
    model.save_pretrained(folder / name)
    words = json.loads(tokenizer())
    words["added_tokens"] = [words["added_tokens"][0] | {"id": 256 + place, "content": token} for place, token in enumerate(SPECIAL)]
    for part in ("pre_tokenizer", "decoder"):
        words[part] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / name / "tokenizer.json").write_text(json.dumps(words))
    (folder / name / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}))
    (folder / name / "preprocessor_config.json").write_text(json.dumps(IMAGES | OWN_IMAGES.get(name, {})))
    if name in OWN_IMAGES:
        (folder / name / "video_preprocessor_config.json").write_text(json.dumps(QWEN3_VIDEOS))
    run(engine, "import", "--model", folder / name, "--out", folder / f"{name}.model")
    return model


def setUpModule():
    global models, processors
    template = TEMPLATE.read_text()
    models = {name: make(name, template) for name in MODELS}
    words = PreTrainedTokenizerFast.from_pretrained(folder / "qwen2_vl")
    words.image_token, words.video_token = "<|image_pad|>", "<|video_pad|>"
    processors = {name: processor_of(folder / name, words, template, name) for name in MODELS}
    for number, size in enumerate(SIZES):
        picture = Image.merge("RGB", [Image.linear_gradient("L").resize(size).rotate(90 * turn).resize(size) for turn in range(3)])
        ImageDraw.Draw(picture).ellipse((4, 4, size[0] // 2, size[1] // 2), fill=(250 - 50 * number, 40 * number, 90))
        picture.save(folder / f"{number}.png")


class Pictures(unittest.TestCase):
    def answer(self, name, *options):
        return json.loads(run(engine, "generate", folder / f"{name}.model", *options, "--max-tokens", LENGTH, "--ignore-eos", "--json"))

    def test_transformers_generates_the_same_tokens(self):
        for name, model in models.items():
            processor, answers = processors[name], set()
            for pictures, prompt in (([0], "<image>What is it?"), ([1], "Is this <image> red?"), ([2], "<image>?"), ([3], "<image>?"),
                                     ([1, 0], "Is <image> like <image>?"), ([2, 3], "<image><image>Which?"), ([3, 0], "Which?")):
                with self.subTest(name, pictures=pictures):
                    content = []
                    for place, text in enumerate((prompt if "<image>" in prompt else "<image>" * len(pictures) + prompt).split("<image>")):
                        content += [{"type": "image"}] * (place > 0) + [{"type": "text", "text": text}] * bool(text)
                    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
                    inputs = processor(text=text, images=[Image.open(folder / f"{one}.png") for one in pictures], return_tensors="pt")
                    if name != "lfm3_vl":  # whose rows have positions as text has them
                        inputs["mm_token_type_ids"] = (inputs["input_ids"] == TOKENS["image_token_id"]).long()
                    right = model.generate(**inputs, max_new_tokens=LENGTH, min_new_tokens=LENGTH, do_sample=False, eos_token_id=1000,
                                           pad_token_id=0)
                    shown = [word for one in pictures for word in ("--image", folder / f"{one}.png")]
                    ours = self.answer(name, *shown, "--prompt", prompt)
                    rows = (inputs["input_ids"] == TOKENS["image_token_id"]).sum().item()
                    self.assertEqual(ours["frames"], rows)
                    self.assertEqual(ours["prompt"] + rows, inputs["input_ids"].shape[1])
                    self.assertEqual(ours["ids"], right[0, inputs["input_ids"].shape[1]:].tolist())
                    answers.add(tuple(ours["ids"]))
            self.assertGreater(len(answers), 3, "the answers depend on pictures and prompt")

    def test_chatml_writes_the_same_tokens_around_an_image(self):
        """The folder's template has a system turn of its own besides, which ChatML gets by --system."""
        for name in models:
            for prompt in ("<image>What is it?", "Is this <image> red?"):
                own, chatml = (self.answer(name, "--image", folder / "1.png", "--prompt", prompt, *options)
                               for options in ([], ["--chat-template", "chatml", "--system", "You are a helpful assistant."]))
                self.assertEqual((own["prompt"], own["ids"]), (chatml["prompt"], chatml["ids"]))

    def test_videos(self):
        """Pictures a second apart in a folder, and a GIF with an odd number of frames."""
        frames = [Image.open(folder / "3.png").resize((90, 60)).rotate(30 * turn) for turn in range(5)]
        (folder / "frames").mkdir()
        for number, frame in enumerate(frames[:4]):
            frame.save(folder / "frames" / f"{number}.png")
        coloured = [frame.quantize(64) for frame in frames]
        coloured[0].save(folder / "frames.gif", save_all=True, append_images=coloured[1:], duration=1000)
        shown = {"frames": frames[:4], "frames.gif": [frame.convert("RGB") for frame in coloured]}
        for (name, model), (path, clip) in itertools.product(models.items(), shown.items()):
            processor, answers = processors[name], set()
            for before, after in (("", "What happens?"), ("Does this ", " end?")):
                with self.subTest(name, path=path, after=after):
                    content = [{"type": "text", "text": before}] * bool(before) + [{"type": "video"}, {"type": "text", "text": after}]
                    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
                    inputs = processor(text=text, videos=[clip], return_tensors="pt")
                    right = model.generate(**inputs, max_new_tokens=LENGTH, min_new_tokens=LENGTH, do_sample=False, eos_token_id=1000,
                                           pad_token_id=0)
                    ours = self.answer(name, "--video", folder / path, "--prompt", f"{before}<video>{after}" if before else after)
                    rows = (inputs["input_ids"] == TOKENS["video_token_id"]).sum().item()
                    self.assertEqual(ours["frames"], rows)
                    self.assertEqual(ours["prompt"] + rows, inputs["input_ids"].shape[1])
                    self.assertEqual(ours["ids"], right[0, inputs["input_ids"].shape[1]:].tolist())
                    answers.add(tuple(ours["ids"]))
            self.assertEqual(len(answers), 2)
        fewer = self.answer("qwen2_vl", "--video", folder / "frames", "--frames", "2", "--prompt", "What happens?")
        whole = self.answer("qwen2_vl", "--video", folder / "frames", "--prompt", "What happens?")
        self.assertEqual(2 * fewer["frames"], whole["frames"])

    def test_videos_that_do_not_fit_are_refused(self):
        clip = folder / "clip"
        clip.mkdir()
        for number in range(2):
            (clip / f"{number}.png").write_bytes((folder / f"{number}.png").read_bytes())
        batch = {"frames": torch.zeros(2, 3, 28, 28), "frame_counts": torch.tensor([2]), "input_ids": torch.tensor([257, -1, -1, 9]),
                 "text_lengths": torch.tensor([4])}
        save_file(batch, folder / "video.safetensors")
        for words, options in (("frame 1 of the video has 301 x 77 pixels, and the first one 60 x 90",
                                ["--video", clip, "--prompt", "<video>What happens?"]),
                               ("the text has a <video>, and the sample has none",
                                ["--image", folder / "0.png", "--prompt", "<video>What happens?"]),
                               ("the encoder reads cells of images, and it has 2 frames for 0 images",
                                ["--batch", folder / "video.safetensors"])):
            with self.subTest(options=options):
                self.assertIn(words, run(engine, "generate", folder / "qwen2_vl.model", *options, code=4))
        (clip / "1.png").unlink()
        self.assertIn("the text has an <image>, and the sample has a video",
                      run(engine, "generate", folder / "qwen2_vl.model", "--video", clip, "--prompt", "<image>?", code=4))
        refusal = "the model's folder does not say how videos are prepared"
        for name in OWN_IMAGES:
            silent = folder / f"{name}.silent"
            shutil.copytree(folder / f"{name}.model", silent)
            for file in silent.rglob("video_preprocessor_config.json"):
                file.unlink()
            for verb in ("generate", "chat"):
                asked = ["--prompt", "What?"] if verb == "generate" else []
                self.assertIn(refusal, run(engine, verb, silent, "--video", clip, *asked, code=4))


if __name__ == "__main__":
    unittest.main()
