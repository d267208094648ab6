"""What SmolVLM2 reads and answers about videos, beside transformers with its SmolVLMProcessor: in generate, training, preprocess and eval.

Its processor of videos needs torchvision; here the processor of images makes the pixels of each frame, and texts, times and which frames are
read are transformers'.

usage: smolvlm_videos_test.py FVLM_ENGINE; exit 77 where the oracle's wheels are missing."""
import base64
import contextlib
import http.client
import io
import json
import re
import subprocess
import sys
import tarfile
import types
import unittest

from byte_tokenizer import tokenizer
from with_transformers import draw, engine, folder, run

import torch
import transformers.models.smolvlm.processing_smolvlm as processing
from PIL import Image, ImageDraw
from transformers import AutoModelForImageTextToText, BatchFeature, LlamaConfig, PreTrainedTokenizerFast, SmolVLMConfig
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor
from transformers.video_utils import VideoMetadata

TILE, ROWS, LENGTH, MOST = 32, 4, 10, 6
NUMBERS = dict(enumerate("no one two three four five six seven eight nine ten eleven".split()))  # in place of the package num2words
MERGES = ["Ġ Y", "ĠY o", "ĠYo u", "Ċ Ċ", "F r", "Ġ e"]  # some join what stands at a video's ends with its words
SPECIAL = ["<|im_start|>", "<|im_end|>", "<end_of_utterance>", "<fake_token_around_image>", "<global-img>", "<image>",
           *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))]
FIRST = 256 + len(MERGES)
IMAGE = FIRST + SPECIAL.index("<image>")
IMAGES = {"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE},
          "do_image_splitting": True, "resample": 1, "processor_class": "SmolVLMProcessor"}
SAMPLING = {"fps": 1, "max_frames": MOST, "video_size": {"longest_edge": TILE}}
# As the folder of SmolVLM2 has it; transformers takes another one where there is a video.
TEMPLATE = processing.DEFAULT_CHAT_TEMPLATE.replace("{% elif line['type'] == 'video' %}{{ '<video>' }}", "")
PROMPTS = [("", "What happens?"), ("", " end?"), ("Does this ", " end?"), ("Does this", "  end?")]
RECIPE = """
local fvlm = require "fvlm"
return fvlm.recipe {
  name = "videos", precision = "fp32", log_every = 1, checkpoint = { every = 2 }, model = fvlm.model { directory = "model" },
  fvlm.stage "sft" {
    data = fvlm.mix { { "videos.tar" }, chat_template = "default", system = "", max_frames = 20, max_text_tokens = 700 },
    objective = fvlm.next_token { on = "answer" }, optimizer = fvlm.adamw { lr = 1e-3 }, schedule = fvlm.constant {},
    batch = 5, samples = 20, packing = { frames = 40, tokens = 4096, segments = 5 },
  },
}
"""


def picture(number, size):
    red = Image.linear_gradient("L").resize(size)
    made = Image.merge("RGB", (red, red.rotate(180), Image.new("L", size, 40 * number % 256)))
    ImageDraw.Draw(made).ellipse((size[0] // 4, size[1] // 4, size[0] // 2, size[1] // 2), fill=(255 - 30 * number % 256, 25 * number % 256, 90))
    return made.quantize(64).convert("RGB")


def write_gif(path, frames, milliseconds=1000):
    coloured = [frame.quantize(64) for frame in frames]
    coloured[0].save(path, "gif", save_all=True, append_images=coloured[1:], duration=milliseconds)


class VideoProcessor:
    """Of the frames of a video whose `metadata` says when they are shown, and its length where that is known."""
    model_input_names = ["pixel_values", "pixel_attention_mask"]
    num_frames, fps = MOST, SAMPLING["fps"]

    def __init__(self, images):
        self.images = images

    def __call__(self, videos, **_):
        frames, = videos
        return BatchFeature({"pixel_values": pixels_of(self.images, frames, do_image_splitting=False), "video_metadata": [self.metadata]})


def pixels_of(processor, pictures, **options):
    return torch.cat([processor([one], return_tensors="pt", **options)["pixel_values"] for one in pictures], 1)


def make_folder(name, **config):
    torch.manual_seed(1)
    model = AutoModelForImageTextToText.from_config(SmolVLMConfig(
        vision_config={"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": TILE,
                       "patch_size": 8},
        text_config=LlamaConfig(vocab_size=FIRST + len(SPECIAL), hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, pad_token_id=None,
                                bos_token_id=None, eos_token_id=FIRST + 2),
        image_token_id=IMAGE, scale_factor=2, tie_word_embeddings=True)).eval()
    draw(model)
    model.save_pretrained(folder / name)
    words = json.loads(tokenizer())
    words["model"]["vocab"] |= {merge.replace(" ", ""): 256 + place for place, merge in enumerate(MERGES)}
    words["model"]["merges"] = MERGES
    words["added_tokens"] = [words["added_tokens"][0] | {"id": FIRST + place, "content": token} for place, token in enumerate(SPECIAL)]
    for part in ("pre_tokenizer", "decoder"):
        words[part] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / name / "tokenizer.json").write_text(json.dumps(words))
    (folder / name / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end_of_utterance>", "image_token": "<image>"}))
    (folder / name / "chat_template.jinja").write_text(TEMPLATE)
    for file, content in config.items():
        (folder / name / f"{file}.json").write_text(json.dumps(content))
    return model


def setUpModule():
    global model, processor
    processing.num2words = NUMBERS.__getitem__
    model = make_folder("hf", preprocessor_config=IMAGES | {"video_sampling": SAMPLING})
    run(engine, "import", "--model", folder / "hf", "--out", folder / "model")
    words = PreTrainedTokenizerFast.from_pretrained(folder / "hf")
    images = SmolVLMImageProcessorPil.from_pretrained(folder / "hf")
    kind = type("Processor", (processing.SmolVLMProcessor,), {"check_argument_for_proper_class": lambda *_: None,
                                                              "validate_inputs": lambda *_, **__: None})
    processor = kind(images, words, VideoProcessor(images), image_seq_len=ROWS, chat_template=TEMPLATE)


def listed(frames, seconds=1.0):
    """Frames that are a video without a length of its own."""
    return frames, VideoMetadata(total_num_frames=len(frames), fps=1 / seconds, frames_indices=list(range(len(frames))))


def sampled(frames, seconds):
    """Of a video file whose pictures are shown for so long each: the engine takes it as one of 24 frames a second."""
    length = len(frames) * seconds
    metadata = VideoMetadata(total_num_frames=round(24 * length), fps=24, duration=length)
    metadata.frames_indices = SmolVLMVideoProcessor.sample_frames(types.SimpleNamespace(num_frames=MOST, fps=1), metadata)
    return [frames[min(int(time / seconds + 1e-6), len(frames) - 1)] for time in metadata.timestamps], metadata


def inputs_of(clip, before, after, answer=None):
    content = [{"type": "text", "text": before}] * bool(before) + [{"type": "video"}, {"type": "text", "text": after}]
    turns = [{"role": "user", "content": content}]
    if answer is not None:
        turns.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    text = processor.apply_chat_template(turns, add_generation_prompt=answer is None)
    frames, processor.video_processor.metadata = clip
    return processor(text=[text], videos=[frames], return_tensors="pt")


def losses_of_answer(inputs, answer):
    """Of the last turn, with the tokens that end it."""
    ids = processor.tokenizer(f" {answer}<end_of_utterance>\n", return_tensors="pt")["input_ids"][0]
    end = inputs["input_ids"].shape[1]
    assert inputs["input_ids"][0, -len(ids):].tolist() == ids.tolist()
    with torch.no_grad():
        logits = model(input_ids=inputs["input_ids"], pixel_values=inputs["pixel_values"]).logits[0, end - len(ids) - 1:end - 1]
    return torch.nn.functional.cross_entropy(logits, ids, reduction="none")


@contextlib.contextmanager
def served(path):
    """A server of the model, as a function that answers a chat."""
    server = subprocess.Popen([str(engine), "serve", str(path), "--port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        while not (found := re.search(r"http://[^ ]*:(\d+)/v1", line := server.stderr.readline())):
            assert line, "it ended"

        def ask(body):
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=1800)
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
            connection.close()
            assert response.status == 200, text
            return json.loads(text)
        yield ask
    finally:
        server.terminate()
        server.communicate()


class Videos(unittest.TestCase):
    def expect_same(self, clip, path, before, after, *options):
        inputs = inputs_of(clip, before, after)
        right = model.generate(input_ids=inputs["input_ids"], pixel_values=inputs["pixel_values"], max_new_tokens=LENGTH,
                               min_new_tokens=LENGTH, do_sample=False, eos_token_id=1000, pad_token_id=0)
        ours = json.loads(run(engine, "generate", folder / "model", "--video", path, "--prompt", f"{before}<video>{after}", *options,
                              "--max-tokens", LENGTH, "--ignore-eos", "--json"))
        self.assertEqual(ours["frames"], len(clip[0]))
        rows = (inputs["input_ids"] == IMAGE).sum().item()
        self.assertEqual(rows, ROWS * len(clip[0]))
        self.assertEqual(ours["prompt"] + rows, inputs["input_ids"].shape[1])
        self.assertEqual(ours["ids"], right[0, inputs["input_ids"].shape[1]:].tolist())
        return tuple(ours["ids"])

    def test_transformers_generates_the_same_tokens(self):
        """Of pictures in a folder, a second apart, and of GIFs of several lengths and speeds."""
        frames = [picture(number, (90, 60)) for number in range(11)]
        (folder / "frames").mkdir()
        for number, frame in enumerate(frames[:4]):
            frame.save(folder / "frames" / f"{number}.png")
        answers = {self.expect_same(listed(frames[:4]), folder / "frames", *prompt) for prompt in PROMPTS}
        self.assertGreater(len(answers), 1, "the answers depend on the prompt")
        for count, seconds in ((1, 1), (3, 1), (5, 0.6), (11, 1), (11, 12)):  # the fourth is sampled, the last one without its ends
            path = folder / f"{count}-{seconds}.gif"
            write_gif(path, frames[:count], int(1000 * seconds))
            if count == 1:
                continue  # a GIF of one picture has no length
            for prompt in PROMPTS[::2]:
                with self.subTest(count=count, seconds=seconds, prompt=prompt):
                    self.expect_same(sampled(frames[:count], seconds), path, *prompt)

    def test_questions_about_videos_have_the_losses_of_transformers(self):
        frames, options = [picture(number, (90, 60)) for number in range(3)], ["It turns.", "Nothing at all."]
        write_gif(folder / "asked.gif", frames)
        (folder / "asked.json").write_text(json.dumps([{"video": "asked.gif", "question": "What happens?", "candidates": options,
                                                        "answer": options[0]}]))
        run(engine, "eval", folder / "model", "--form", "mvbench", "--questions", folder / "asked.json", "--media", folder, "--scores",
            folder / "asked.jsonl")
        found, = map(json.loads, (folder / "asked.jsonl").read_text().splitlines())
        for option, loss in zip(options, found["losses"], strict=True):
            inputs = inputs_of(sampled(frames, 1), "", "What happens?", option)
            self.assertAlmostEqual(loss, losses_of_answer(inputs, option).mean().item(), delta=2e-4)

    def test_fewer_frames_where_they_are_limited(self):
        frames = [picture(number, (40, 40)) for number in range(9)]
        (folder / "nine").mkdir()
        for number, frame in enumerate(frames):
            frame.save(folder / "nine" / f"{number}.png")
        ours = json.loads(run(engine, "generate", folder / "model", "--video", folder / "nine", "--prompt", "?", "--json", "--max-tokens", 1))
        self.assertEqual(ours["frames"], MOST)
        ours = json.loads(run(engine, "generate", folder / "model", "--video", folder / "nine", "--prompt", "?", "--json", "--max-tokens", 1,
                              "--frames", 2))
        self.assertEqual(ours["frames"], 2)

    def test_other_marks_beside_a_video_are_refused(self):
        write_gif(folder / "two.gif", [picture(number, (40, 40)) for number in range(2)])
        for prompt, words in (("<video><video>?", "the text has 2 <video> and 0 <image>"), ("<video><image>?", "the text has 1 <video> and 1 <image>")):
            self.assertIn(words, run(engine, "generate", folder / "model", "--video", folder / "two.gif", "--prompt", prompt, code=4))

    def test_where_a_folder_says_how_videos_are_read(self):
        """The section of processor_config.json goes first; without any of them a video's frames come without words."""
        write_gif(folder / "eight.gif", [picture(number, (40, 40)) for number in range(8)])
        own = {"video_processor_type": "SmolVLMVideoProcessor", "size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}}
        videos = {name: own | numbers for name, numbers in (("nested", {"num_frames": 3, "fps": 1}),
                                                            ("file", {"video_sampling": SAMPLING | {"max_frames": 4}}))}
        frames = {}
        for name, config in (("plain", {}), ("file", {"video_preprocessor_config": videos["file"]}),
                             ("nested", {"video_preprocessor_config": videos["file"],
                                         "processor_config": {"video_processor": videos["nested"], "image_processor": IMAGES}})):
            make_folder(f"{name}.hf", preprocessor_config=IMAGES, **config)
            run(engine, "import", "--model", folder / f"{name}.hf", "--out", folder / f"{name}.model")
            ours = json.loads(run(engine, "generate", folder / f"{name}.model", "--video", folder / "eight.gif", "--prompt", "?", "--json",
                                  "--max-tokens", 1))
            frames[name] = (ours["frames"], ours["prompt"] > 100)
        self.assertEqual(frames, {"plain": (8, False), "file": (4, True), "nested": (3, True)})


    def test_chatml_has_the_same_words(self):
        """Its turns are others: the frames and their words take as many tokens in both forms."""
        write_gif(folder / "three.gif", [picture(number, (40, 40)) for number in range(3)])

        def tokens(*options):
            return json.loads(run(engine, "generate", folder / "model", *options, "--max-tokens", 1, "--json"))["prompt"]
        for template in ("default", "chatml"):
            shown = ["--chat-template", template, "--system", ""]
            video = tokens("--video", folder / "three.gif", "--prompt", "a <video> b", *shown)
            self.assertEqual(video - tokens("--prompt", "a  b", *shown), self.tokens_of_words(3), template)

    def test_a_video_beside_images_in_a_conversation(self):
        """transformers' processor makes the ids of both; it returns the pixels of one of them alone, and the model reads those of both."""
        frames, image = [picture(number, (90, 60)) for number in range(3)], picture(9, (80, 80))
        write_gif(folder / "beside.gif", frames)
        image.save(folder / "image.png")
        clip, processor.video_processor.metadata = sampled(frames, 1)
        parts = {"text": {"type": "text", "text": "What happens?"}, "image": {"type": "image"}, "video": {"type": "video"}}
        sent = {"text": parts["text"], **{kind: {"type": f"{kind}_url", f"{kind}_url": {"url": f"data:{mime};base64," + base64.b64encode(
            (folder / file).read_bytes()).decode()}} for kind, mime, file in (("image", "image/png", "image.png"), ("video", "video/gif", "beside.gif"))}}
        pixels = {"image": pixels_of(processor.image_processor, [image]),
                  "video": pixels_of(processor.image_processor, clip, do_image_splitting=False)}
        with served(folder / "model") as ask:
            for order in ([("image", "video", "text")], [("video", "text", "image")], [("video", "text"), ("image", "text")]):
                turns, messages = [], []
                for kinds in order:
                    turns += [{"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}] * bool(turns)
                    messages += [{"role": "assistant", "content": "Yes."}] * bool(messages)
                    turns.append({"role": "user", "content": [parts[kind] for kind in kinds]})
                    messages.append({"role": "user", "content": [sent[kind] for kind in kinds]})
                text = processor.apply_chat_template(turns, add_generation_prompt=True)
                ids = processor(text=[text], videos=[clip], images=[[image]], return_tensors="pt")["input_ids"]
                shown = torch.cat([pixels[kind] for kinds in order for kind in kinds if kind != "text"], 1)
                right = model.generate(input_ids=ids, pixel_values=shown, max_new_tokens=LENGTH, do_sample=False, pad_token_id=0)[0, ids.shape[1]:]
                answer = ask({"messages": messages, "max_tokens": LENGTH, "temperature": 0, "logprobs": True})
                self.assertEqual(answer["usage"]["prompt_tokens"], ids.shape[1], order)
                said = [token["bytes"] for token in answer["choices"][0]["logprobs"]["content"]]
                words = processor.tokenizer
                text_of = {token: list(words.decode([token]).encode()) for token in right.tolist() if token != FIRST + 2}
                for ours, token in zip(said, (token for token in right.tolist() if token != FIRST + 2), strict=True):
                    if "\ufffd" not in words.decode([token]):
                        self.assertEqual(ours, text_of[token], order)

    def tokens_of_words(self, frames):
        clip = listed([picture(number, (40, 40)) for number in range(frames)])
        clip[1].duration = frames
        inputs, without = inputs_of(clip, "a ", " b")["input_ids"], processor.apply_chat_template(
            [{"role": "user", "content": [{"type": "text", "text": "a  b"}]}], add_generation_prompt=True)
        return (inputs != IMAGE).sum().item() - len(processor.tokenizer(without)["input_ids"])


class Training(unittest.TestCase):
    """On GIFs, and on numbered pictures that the text calls a video; and on numbered pictures that it does not."""
    clips = [[picture(3 * number + place, (48, 32)) for place in range(count)] for number, count in enumerate((2, 3, 5, 4))]

    @classmethod
    def setUpClass(cls):
        with tarfile.open(folder / "videos.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            def add(name, content):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))

            def add_pictures(key, frames):
                for place, frame in enumerate(frames):
                    file = io.BytesIO()
                    frame.save(file, "png")
                    add(f"{key}.{place:03}.png", file.getvalue())
            for number, frames in enumerate(cls.clips):
                if number % 2 == 0:
                    file = io.BytesIO()
                    write_gif(file, frames)
                    add(f"{number}.gif", file.getvalue())
                else:
                    add_pictures(number, frames)
                add(f"{number}.json", json.dumps({"user": "Say, <video> Which number?", "assistant": f"It is {number}."}).encode())
            add_pictures(4, cls.clips[0])
            add("4.json", json.dumps({"user": "Which number?", "assistant": "It is 4."}).encode())
        (folder / "recipe.lua").write_text(RECIPE.replace('"model"', json.dumps(str(folder / "model")))
                                           .replace('"videos.tar"', json.dumps(str(folder / "videos.tar"))))

    def inputs(self, number):
        if number == 4:
            text = processor.apply_chat_template(
                [{"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "Which number?"}]},
                 {"role": "assistant", "content": [{"type": "text", "text": "It is 4."}]}])
            return processor(text=[text], images=[self.clips[0]], return_tensors="pt")
        clip = sampled(self.clips[number], 1) if number % 2 == 0 else listed(self.clips[number])
        return inputs_of(clip, "Say, ", " Which number?", f"It is {number}.")

    def test_preprocessed_ids_are_those_of_transformers(self):
        run(engine, "preprocess", folder / "recipe.lua", "--out", folder / "prepared")
        seen = 0
        for path in (folder / "prepared").rglob("*.tar"):
            with tarfile.open(path) as tar:
                for member in tar:
                    if not member.name.endswith(".json"):
                        continue
                    sample = json.load(tar.extractfile(member))
                    right = self.inputs(int(member.name.split("/")[-1].split(".")[0]))["input_ids"][0].tolist()
                    self.assertEqual([IMAGE if token < 0 else token for token in sample["token_ids"]], right, member.name)
                    seen += 1
        self.assertEqual(seen, 5)

    def test_losses_are_those_of_transformers(self):
        whole = self.losses("run")
        right = torch.cat([losses_of_answer(self.inputs(number), f"It is {number}.") for number in range(5)])
        self.assertAlmostEqual(whole[0], right.mean().item(), delta=2e-4)
        run(engine, "preprocess", folder / "recipe.lua", "--out", folder / "read")
        self.assertEqual(self.losses("preprocessed", "--set", f"stages.sft.data.preprocessed={folder / 'read' / 'sft'}"), whole)

    def losses(self, name, *options):
        run(engine, "train", folder / "recipe.lua", "--run-dir", folder / name, *options)
        lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if line["kind"] == "step"]


if __name__ == "__main__":
    unittest.main()
