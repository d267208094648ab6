"""`fvlm-engine serve` with whole models of Hugging Face folders, SmolVLM, InternVL, Ovis2, Granite Docling, LLaVA-NeXT and LLaVA-OneVision with their tiles, LLaVA, Qwen2-VL, Qwen3-VL and Ministral 3, asked
about pictures: the answers are those of `generate`.

usage: serve_whole_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import io
import json
import os
import shutil
import unittest

import forked_program
from against_oracle import engine, folder, load_file, save_file, tool, torch
from byte_tokenizer import tokenizer
from running_server import Server, data_url, picture, user

os.environ |= {"HF_HUB_OFFLINE": "1"}
from PIL import Image
from transformers import AutoModelForImageTextToText, CLIPVisionConfig, DeepseekVLConfig, LlamaConfig, LlavaConfig, Qwen2VLConfig, SiglipVisionConfig

PICTURES = {"small.png": picture(28), "large.png": picture(100, step=2), "other.png": picture(60, step=5)}
STEPS = (1, 3, 7)  # of the pictures of a video
LLAVA = LlavaConfig(
    vision_config=CLIPVisionConfig(hidden_size=32, intermediate_size=80, num_hidden_layers=3, num_attention_heads=2, image_size=28, patch_size=7),
    text_config=LlamaConfig(vocab_size=259, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
                            num_key_value_heads=2, max_position_embeddings=512, pad_token_id=None, bos_token_id=None, eos_token_id=2),
    image_token_index=256)
DEEPSEEK = DeepseekVLConfig(
    vision_config=SiglipVisionConfig(hidden_size=32, intermediate_size=80, num_hidden_layers=3, num_attention_heads=2, image_size=28, patch_size=7),
    text_config=LLAVA.text_config, image_token_id=256)
QWEN = Qwen2VLConfig(
    vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2, "num_heads": 2},
    text_config={"vocab_size": 262, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 3, 2]}},
    vision_start_token_id=259, vision_end_token_id=260, image_token_id=261, video_token_id=256)


def run(*command):
    result = forked_program.run(command)
    assert result.returncode == 0, f"{command} ended with {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


def strengthen(path):
    """Weights that matter: those of a new model are so small that it says the same about every picture."""
    generator = torch.Generator().manual_seed(5)
    tensors = {name: torch.randn(tensor.shape, generator=generator) * 1.2 / tensor[0].numel() ** 0.5 if tensor.dim() > 1 else tensor
               for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def setUpModule():
    for name, content in PICTURES.items():
        (folder / name).write_bytes(content)
    (folder / "words").mkdir()
    words = json.loads(tokenizer())
    for part in ("pre_tokenizer", "decoder"): # as the package tokenizers, which adds tokens to it, wants them
        words[part] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "words" / "tokenizer.json").write_text(json.dumps(words))
    for name in ("smolvlm", "internvl", "ovis2", "granite-docling", "llava-next"):
        tool(f"make-{name}", folder / name, "--tokenizer", folder / "words")
    tool("make-llava-next", folder / "llava-onevision", "--tokenizer", folder / "words", "--onevision")
    torch.manual_seed(1)
    AutoModelForImageTextToText.from_config(LLAVA).save_pretrained(folder / "llava")
    (folder / "llava" / "tokenizer.json").write_text(tokenizer())
    (folder / "llava" / "preprocessor_config.json").write_text(json.dumps(
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}))
    AutoModelForImageTextToText.from_config(DEEPSEEK).save_pretrained(folder / "deepseek-vl")
    (folder / "deepseek-vl" / "tokenizer.json").write_text(tokenizer())
    (folder / "deepseek-vl" / "preprocessor_config.json").write_text(json.dumps(
        {"image_processor_type": "DeepseekVLImageProcessor", "size": {"height": 28, "width": 28}, "min_size": 7}))
    AutoModelForImageTextToText.from_config(QWEN).save_pretrained(folder / "qwen2-vl")
    (folder / "qwen2-vl" / "tokenizer.json").write_text(tokenizer(further=["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]))
    (folder / "qwen2-vl" / "preprocessor_config.json").write_text(json.dumps(
        {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
         "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 12}))
    for name in ("qwen3-vl", "lfm3-vl"):
        tool("make-qwen2-vl", folder / name, "--tokenizer", folder / "words", "--family", name.replace("-", "_"))
    tool("make-mistral3", folder / "ministral3", "--tokenizer", folder / "words")
    tool("make-paddleocr-vl", folder / "paddleocr-vl", "--tokenizer", folder / "words")
    tool("make-minicpm", folder / "minicpm", "--tokenizer", folder / "words")
    tool("make-minicpm", folder / "minicpm-ocr", "--tokenizer", folder / "words", "--family", "minicpm_ocr")
    tool("make-minicpm", folder / "minicpm47", "--tokenizer", folder / "words", "--family", "minicpmv4_7", "--without-delta-rule")
    tool("make-glm-ocr", folder / "glm-ocr", "--tokenizer", folder / "words")
    tool("make-glm-ocr", folder / "glm4v", "--tokenizer", folder / "words", "--family", "glm4v")
    tool("make-hunyuan-ocr", folder / "hunyuan-ocr", "--tokenizer", folder / "words")
    tool("make-video-llama-3", folder / "video-llama-3", "--tokenizer", folder / "words")
    tool("make-gemma4", folder / "gemma4", "--tokenizer", folder / "words")
    for name in ("smolvlm", "llava", "deepseek-vl", "internvl", "ovis2", "granite-docling", "llava-next", "llava-onevision", "qwen2-vl", "qwen3-vl", "lfm3-vl", "ministral3", "paddleocr-vl", "glm-ocr", "hunyuan-ocr",
                 "video-llama-3", "gemma4", "minicpm", "minicpm47", "minicpm-ocr", "glm4v"):
        strengthen(folder / name / "model.safetensors")
    shutil.copytree(folder / "smolvlm", folder / "smolvlm2")
    (folder / "smolvlm2" / "video_preprocessor_config.json").write_text(json.dumps(
        {"video_processor_type": "SmolVLMVideoProcessor", "size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}, "num_frames": 6,
         "fps": 1}))
    for name, steps in (("clip", STEPS), ("other", (2, 5, 11))):
        frames = [Image.open(io.BytesIO(picture(60, step=step))) for step in steps]
        frames[0].save(folder / f"{name}.gif", save_all=True, append_images=frames[1:], duration=1000)
    for name in ("smolvlm", "smolvlm2", "llava", "deepseek-vl", "internvl", "ovis2", "granite-docling", "llava-next", "llava-onevision", "qwen2-vl", "qwen3-vl", "lfm3-vl", "ministral3", "paddleocr-vl", "glm-ocr",
                 "hunyuan-ocr", "video-llama-3", "gemma4", "minicpm", "minicpm47", "minicpm-ocr", "glm4v"):
        run(engine, "import", "--model", folder / name, "--out", folder / f"{name}.model")


def content_of(prompt, *files):
    """A prompt with <image> in it as parts of a message."""
    first, *texts = prompt.split("<image>")
    parts = [{"type": "text", "text": first}] * bool(first)
    for file, text in zip(files, texts, strict=True):
        parts += [{"type": "image_url", "image_url": {"url": data_url(PICTURES[file])}}, {"type": "text", "text": text}]
    return {"role": "user", "content": parts}


def generated(model, *options):
    return json.loads(run(engine, "generate", folder / model, *options, "--max-tokens", 12, "--json"))["text"]


def generated_together(model, asked, *options):
    """Answers to prompts about pictures by one process."""
    (folder / "asked.jsonl").write_text("".join(json.dumps({"user": prompt, "images": list(files)}) + "\n" for prompt, files in asked))
    (folder / "answers.jsonl").unlink(missing_ok=True)
    run(engine, "generate", folder / model, "--data", folder / "asked.jsonl", "--answers", folder / "answers.jsonl", "--max-tokens", 12, *options)
    return [json.loads(line)["answer"] for line in (folder / "answers.jsonl").read_text().splitlines()]


def file_of(path):
    """A video as one file, as vLLM takes it."""
    return {"type": "video_url", "video_url": {"url": data_url(path.read_bytes(), "video/gif")}}


class WholeModels(unittest.TestCase):
    def check(self, model, *options, answers_at_least=len(PICTURES) + 1, shares_pages=True):
        asked = [(prompt, (file,)) for file in PICTURES for prompt in ("<image>What is this?", "Is this <image> a cat?")]
        of_each = len(asked)
        # The last one is about a picture that was there before: its rows are found in pages, and change nothing.
        asked += [("What is this?", ()), ("Is <image> like <image>?", ("other.png", "small.png")), ("<image>What was it?", ("large.png",))]
        expected = generated_together(model, asked, *options)
        with Server(*options, model=model) as server:
            for (prompt, files), answer in zip(asked, expected, strict=True):
                before = server.metrics()["cache_shared_tokens_total"]
                with self.subTest(prompt=prompt, files=files):
                    self.assertEqual(server.ask(content_of(prompt, *files), max_tokens=12), answer)
            self.assertEqual(server.metrics()["cache_shared_tokens_total"] > before, shares_pages)
        self.assertGreaterEqual(len(set(expected[:of_each])), answers_at_least, "the answers depend on picture and prompt")

    def test_smolvlm_reads_the_tiles_of_pictures(self):
        self.check("smolvlm.model")  # in the chat template of its folder

    def test_a_model_answers_in_its_own_chat_template(self):
        def prompt(*options):
            return json.loads(run(engine, "generate", folder / "smolvlm.model", "--prompt", "What is this?", "--max-tokens", 1, "--json",
                                  *options))["prompt"]
        self.assertEqual(prompt(), prompt("--chat-template", "default"))
        self.assertNotEqual(prompt(), prompt("--chat-template", "chatml"))

    def test_internvl_reads_the_tiles_of_pictures(self):
        self.check("internvl.model")

    def test_ovis2_reads_the_tiles_of_pictures(self):
        self.check("ovis2.model")

    def test_granite_docling_shares_pages_of_tiles_with_their_deepstack(self):
        self.check("granite-docling.model")

    def test_special_tokens_of_an_answer_are_shown_on_request(self):
        asked = [(prompt, (file,)) for file in PICTURES for prompt in ("<image>What is this?", "Is this <image> a cat?", "<image>A cat?", "What <image> is it?")]
        shown, left_out = (generated_together("granite-docling.model", asked, *options) for options in (("--special-tokens",), ()))
        self.assertNotEqual(shown, left_out)
        with Server(model="granite-docling.model") as server:
            for (prompt, files), whole, text in zip(asked, shown, left_out, strict=True):
                self.assertEqual(server.ask(content_of(prompt, *files), max_tokens=12, skip_special_tokens=False), whole)
                self.assertEqual(server.ask(content_of(prompt, *files), max_tokens=12, skip_special_tokens=True), text)

    def test_llava_next_reads_the_tiles_of_pictures(self):
        self.check("llava-next.model")

    def test_llava_onevision_reads_pictures_that_are_shrunk(self):
        # Of its many rows of a picture a few of text are too small a part to change what it says.
        self.check("llava-onevision.model", answers_at_least=len(PICTURES))

    def test_llava(self):
        self.check("llava.model")

    def test_qwen2_vl_reads_cells(self):
        self.check("qwen2-vl.model")

    def test_qwen3_vl_shares_pages_of_pictures_with_their_deepstack(self):
        self.check("qwen3-vl.model")

    def test_lfm3_vl_shares_pages_of_cells_and_convolutions(self):
        self.check("lfm3-vl.model")

    def test_ministral3_reads_cells(self):
        self.check("ministral3.model")

    def test_paddleocr_vl_shares_pages_of_cells(self):
        self.check("paddleocr-vl.model")

    def test_minicpm_reads_the_parts_of_pictures(self):
        """Whose delta rule has no pages that could be shared."""
        self.check("minicpm.model", shares_pages=False)

    def test_minicpm_ocr_reads_the_parts_of_pictures(self):
        self.check("minicpm-ocr.model", shares_pages=False)

    def test_minicpm47_shares_pages_of_canvases(self):
        self.check("minicpm47.model")

    def test_glm_ocr_shares_pages_of_cells(self):
        self.check("glm-ocr.model")

    def test_glm4v_shares_pages_of_cells(self):
        self.check("glm4v.model")

    def test_deepseek_vl_reads_images_in_the_middle_of_a_square(self):
        self.check("deepseek-vl.model")

    def test_video_llama_3_shares_pages_of_cells(self):
        self.check("video-llama-3.model")

    def test_hunyuan_ocr_shares_pages_of_cells(self):
        self.check("hunyuan-ocr.model")

    def test_gemma4_shares_pages_of_cells_and_keys_of_layers(self):
        self.check("gemma4.model")

    def test_a_video_is_one_part_of_a_message(self):
        clip = [picture(60, step=step) for step in STEPS]
        (folder / "clip").mkdir()
        for number, frame in enumerate(clip):
            (folder / "clip" / f"{number}.png").write_bytes(frame)
        video = {"type": "video", "video": [data_url(frame) for frame in clip]}
        image = {"type": "image_url", "image_url": {"url": data_url(clip[0])}}
        words = {"type": "text", "text": "What happens?"}
        for model in ("qwen2-vl.model", "qwen3-vl.model", "lfm3-vl.model", "glm4v.model"):
            with self.subTest(model), Server(model=model) as server:
                takes = json.loads(server.send("/v1/models")[1])["data"][0]["fvlm"]
                self.assertEqual((takes["video_frames"], takes["video_part"]), (64, True))
                expected = generated(model, "--video", folder / "clip", "--prompt", "<video>What happens?")
                for _ in range(2):  # the second time from pages
                    self.assertEqual(server.ask({"role": "user", "content": [video, words]}, max_tokens=12), expected)
                self.assertGreater(server.metrics()["cache_shared_tokens_total"], 0)
                for parts, said in (([video, image, words], "a request has one video, or any number of images"),
                                    ([image, video, words], "a request has one video, or any number of images"),
                                    ([image, file_of(folder / "clip.gif"), words], "a request has one video, or any number of images"),
                                    ([video, video, words], "a request has one video, or any number of images"),
                                    ([video | {"video": []}, words], "the frames in order"),
                                    ([video | {"fps": 0}, words], "expected a number from 0.001"),
                                    ([video | {"video": [data_url(picture(60)), data_url(picture(40))]}, words],
                                     "frame 1 of the video has 40 x 40 pixels, and the first one 60 x 60")):
                    with self.subTest(said):
                        status, answer = server.send("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]})[:2]
                        self.assertEqual(status, 400)
                        self.assertIn(said, str(answer))
        with Server(model="llava.model") as server:
            expected = generated("llava.model", "--video", folder / "clip", "--prompt", "<video>What happens?")
            self.assertEqual(server.ask({"role": "user", "content": [video, words]}, max_tokens=12), expected)

    def test_a_video_is_one_file(self):
        """Of models that read cells, frames with words around them, and frames alone."""
        words = {"type": "text", "text": "What happens?"}
        for model in ("qwen2-vl.model", "smolvlm2.model", "internvl.model", "llava.model"):
            with self.subTest(model), Server(model=model) as server:
                expected = generated(model, "--video", folder / "clip.gif", "--prompt", "<video>What happens?")
                asked = {"role": "user", "content": [file_of(folder / "clip.gif"), words]}
                for _ in range(2):
                    self.assertEqual(server.ask(asked, max_tokens=12), expected)
                other = generated(model, "--video", folder / "other.gif", "--prompt", "<video>What happens?")
                self.assertEqual(server.ask({"role": "user", "content": [file_of(folder / "other.gif"), words]}, max_tokens=12), other)
                self.assertNotEqual(other, expected)
        with Server("--frames", 2, model="smolvlm2.model") as server:
            expected = generated("smolvlm2.model", "--video", folder / "clip.gif", "--prompt", "<video>What happens?", "--frames", 2)
            self.assertEqual(server.ask(asked, max_tokens=12), expected)


if __name__ == "__main__":
    unittest.main()
