"""Texts and pixels of samples against the processors of transformers: processor_test.py SAMPLE_PROBE TEMPLATES. Equal to the bit."""
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

probe, templates = sys.argv.pop(1), Path(sys.argv.pop(1))
try:
    import numpy
    from PIL import Image
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.gemma4 import processing_gemma4
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
    from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
    from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
    from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
    from transformers.models.internvl import processing_internvl
    from transformers.models.qianfan_ocr import processing_qianfan_ocr
    from transformers.models.lfm3_vl import processing_lfm3_vl
    from transformers.models.llava.processing_llava import LlavaProcessor
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
    from transformers.models.llava_onevision import processing_llava_onevision
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
    from transformers.models.pixtral import image_processing_pil_pixtral
    # The processor takes a function from the module of an image processor that needs torchvision; this one has the same.
    sys.modules["transformers.models.pixtral.image_processing_pixtral"] = image_processing_pil_pixtral
    from transformers.models.lighton_ocr import processing_lighton_ocr
    from transformers.models.paddleocr_vl import processing_paddleocr_vl
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil
    from transformers.models.pixtral.processing_pixtral import PixtralProcessor as WithTorchvision
    from transformers.models.qwen2_vl import processing_qwen2_vl
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
    sys.path.append(str(Path(__file__).resolve().parents[2] / "model"))
    import lfm2_vl_processor
except ImportError as error:
    print(f"Skipped\nthe oracle is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

draw = numpy.random.default_rng(3)
scratch = tempfile.TemporaryDirectory()
root = Path(scratch.name)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<end_of_utterance>", "<fake_token_around_image>", "<global-img>", "<image>"]
INTERNVL_TOKENS = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"}
SMOLVLM = ("<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
           "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
           "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
           "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
           "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}")
LLAVA = ("{% for message in messages %}{{ message['role'].upper() + ': '}}{% for content in message['content'] | "
         "selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}{% for content in message['content'] | "
         "selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}{% endfor %}{% endfor %}"
         "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}")
INTERNVL = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}{% for content in message['content'] %}"
            "{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}{% elif content['type'] == 'video' %}{{ '<video>\n' }}"
            "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{{'<|im_end|>\n'}}{% endfor %}"
            "{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}")

PADDLEOCR = ("{{ cls_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' }}{% for part in message['content'] %}"
             "{% if part['type'] == 'image' %}{{ '<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>' }}{% endif %}{% endfor %}"
             "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{{ '\n' }}"
             "{% else %}{% if message['role'] == 'assistant' %}{{ 'Assistant:\n' }}{% endif %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}"
             "{{ eos_token if message['role'] == 'assistant' else '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}")

GEMMA4 = ("{{ bos_token }}{% for message in messages %}{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
          "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<|image|>' }}{% elif part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}"
          "{% endfor %}{{ '<turn|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}")

GLM = ("[gMASK]<sop>{% for message in messages %}{{ '<|' + message['role'] + '|>\n' }}{{ '<think></think>\n' if message['role'] == 'assistant' else '' }}"
       "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<|begin_of_image|><|image|><|end_of_image|>' }}"
       "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}")


def alone(processor):
    """This class of processors with image processors that need no torchvision, and without those of videos and sound."""
    return type(processor.__name__, (processor,), {"check_argument_for_proper_class": lambda *_: None})


InternVLProcessor = alone(processing_internvl.InternVLProcessor)
QianfanOCRProcessor = alone(processing_qianfan_ocr.QianfanOCRProcessor)
LlavaOnevisionProcessor = alone(processing_llava_onevision.LlavaOnevisionProcessor)
PixtralProcessor = alone(WithTorchvision)
LightOnOcrProcessor = alone(processing_lighton_ocr.LightOnOcrProcessor)
Gemma4Processor = alone(processing_gemma4.Gemma4Processor)
GlmProcessor = alone(Glm46VProcessor)
Glm4vProcessorAlone = alone(Glm4vProcessor)
PaddleOCRVLProcessor = alone(processing_paddleocr_vl.PaddleOCRVLProcessor)
Qwen2VLProcessor = alone(processing_qwen2_vl.Qwen2VLProcessor)
Lfm3VlProcessor = alone(processing_lfm3_vl.Lfm3VlProcessor)


def tokenizer_with(template, **named):
    """Bytes, a few merges of line breaks and letters, and the special tokens of SmolVLM."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ċ", "Ċ"), ("t", "h"), ("Ġ", "a")]
    vocabulary = {token: i for i, token in enumerate(alphabet + ["".join(merge) for merge in merges])}
    model = Tokenizer(models.BPE(vocabulary, merges))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    model.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL + rows + list(named.values())])
    made = PreTrainedTokenizerFast(tokenizer_object=model, image_token="<image>", eos_token="<|im_end|>",
                                   extra_special_tokens=named or None)
    made.chat_template = template
    return made


def picture(width, height):
    return Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=numpy.uint8))


def shard_of(samples):
    path = root / f"{len(list(root.iterdir()))}.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        def add(name, content):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for number, (messages, images) in enumerate(samples):
            if isinstance(images, bytes):
                add(f"{number:04}.gif", images)
                images = []
            for place, image in enumerate(images):
                data = io.BytesIO()
                image.save(data, "png")
                add(f"{number:04}.{place:03}.png", data.getvalue())
            add(f"{number:04}.json", json.dumps({"messages": messages}).encode())
    return path


def tiles_first(inputs):
    """The tiles of each image and then the whole one, without the empty ones that fill images of fewer tiles up."""
    images = []
    for image in inputs["pixel_values"]:
        used = [frame for frame in image if frame.any()]
        images += used[1:] + used[:1]
    return numpy.stack(images)


VIDEO = object()


def said(role, *parts):
    content = [{"type": "image"} if part is None else {"type": "video"} if part is VIDEO else {"type": "text", "text": part} for part in parts]
    return {"role": role, "content": content}


class Processors(unittest.TestCase):
    def processed(self, processor, frame, rows, samples, image_token="<image>", *options):
        """Of each sample what the engine says of it, the values of all frames, and the id of the image token."""
        folder, out = root / f"folder-{len(list(root.iterdir()))}", root / "out.bin"
        folder.mkdir()
        processor.tokenizer.save_pretrained(folder)
        processor.image_processor.save_pretrained(folder)
        cells = {key: vars(processor)[key] for key in ("patch_size", "spatial_merge_size") if "spatial_merge_size" in vars(processor)}
        (folder / "processor_config.json").write_text(json.dumps({"processor_class": type(processor).__name__} | cells))
        done = subprocess.run([probe, folder, str(frame), str(rows), shard_of(samples), out, *options], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines, pixels = done.stdout.splitlines(), numpy.frombuffer(out.read_bytes(), numpy.float32)
        self.assertEqual(len(lines), len(samples))
        return lines, pixels, processor.tokenizer.convert_tokens_to_ids(image_token)

    def expect_equal(self, processor, frame, rows, samples, image_token="<image>"):
        lines, pixels, image = self.processed(processor, frame, rows, samples, image_token)
        at = 0
        for line, (messages, images) in zip(lines, samples):
            text = processor.apply_chat_template(messages, tokenize=False)
            theirs = processor(text=text, images=[images], return_tensors="np")
            ours = json.loads(line)
            self.assertEqual([image if token < 0 else token for token in ours["ids"]], theirs["input_ids"][0].tolist())
            values = theirs["pixel_values"].reshape(-1, 3, frame, frame)
            if isinstance(processor, (LlavaNextProcessor, LlavaOnevisionProcessor)):
                values = tiles_first(theirs)
            self.assertEqual(ours["frames"], len(values))
            self.assertTrue(numpy.array_equal(pixels[at:at + values.size], values.ravel()), line)
            at += values.size
        self.assertEqual(at, pixels.size)

    def test_idefics3_and_smolvlm(self):
        one = [([said("user", None, "What is that?"), said("assistant", "The moon.")], [picture(*size)])
               for size in ((64, 48), (97, 31), (31, 97), (32, 32), (20, 21))]
        two = [([said("user", None, None, "Which is the red one?"), said("assistant", "The last.")],
                [picture(70, 70), picture(70, 70)]),
               ([said("user", "First ", None, " or this?"), said("assistant", "No."), said("user", "Why?"),
                 said("assistant", "It is late.")], [picture(40, 90)])]
        for kind in (Idefics3ImageProcessorPil, SmolVLMImageProcessorPil):
            for options in ({}, {"do_image_splitting": False}):
                images = kind(size={"longest_edge": 96}, max_image_size={"longest_edge": 32}, **options)
                tokenizer = tokenizer_with(SMOLVLM)
                processor = Idefics3Processor(images, tokenizer, image_seq_len=5, chat_template=SMOLVLM)
                # Images of one call must have equally many tiles for transformers; two[0] has.
                self.expect_equal(processor, 32, 5, one + two)

    def test_internvl(self):
        for options in ({"max_patches": 6}, {"max_patches": 1}, {"min_patches": 2, "max_patches": 4}):
            images = GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, **options)
            processor = InternVLProcessor(images, tokenizer_with(INTERNVL, **INTERNVL_TOKENS), None, image_seq_length=5, chat_template=INTERNVL)
            self.expect_equal(processor, 32, 5, [
                *(([said("user", None, "What is that?"), said("assistant", "The moon.")], [picture(*size)])
                  for size in ((64, 48), (97, 31), (31, 97), (32, 32), (20, 21))),
                ([said("user", None, None, "Which is the red one?"), said("assistant", "The last.")], [picture(70, 70), picture(90, 20)]),
                ([said("user", "First ", None, " or this?"), said("assistant", "No."), said("user", "Why?"),
                  said("assistant", "It is late.")], [picture(40, 90)])], "<IMG_CONTEXT>")

    def test_qianfan_ocr(self):
        """Whose template writes <image>, in place of which the processor writes another token."""
        template = INTERNVL.replace("<IMG_CONTEXT>", "<image>")
        images = GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, max_patches=6)
        processor = QianfanOCRProcessor(images, tokenizer_with(template, **INTERNVL_TOKENS), image_seq_length=5, chat_template=template)
        self.expect_equal(processor, 32, 5, [
            *(([said("user", None, "What is that?"), said("assistant", "The moon.")], [picture(*size)]) for size in ((64, 48), (31, 97), (20, 21))),
            ([said("user", "First ", None, " or ", None), said("assistant", "No.")], [picture(70, 70), picture(90, 20)])], "<IMG_CONTEXT>")

    def test_a_video_of_internvl(self):
        images = GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, max_patches=4)
        processor = InternVLProcessor(images, tokenizer_with(INTERNVL, **INTERNVL_TOKENS), None, image_seq_length=5, chat_template=INTERNVL)
        frames, file = [Image.new("RGB", (70, 40), color) for color in ((250, 0, 0), (0, 250, 0), (0, 0, 250))], io.BytesIO()
        frames[0].save(file, "gif", save_all=True, append_images=frames[1:], duration=1000)
        messages = [said("user", VIDEO, "What happens?"), said("assistant", "It changes.")]
        (line,), pixels, image = self.processed(processor, 32, 5, [(messages, file.getvalue())], "<IMG_CONTEXT>")
        shown = processor.replace_video_token({"pixel_values_videos": [numpy.zeros((3, 1))]}, 0)
        text = processor.apply_chat_template(messages, tokenize=False).replace("<video>", shown)
        ours = json.loads(line)
        self.assertEqual([image if token < 0 else token for token in ours["ids"]], processor.tokenizer(text)["input_ids"])
        theirs = images(frames, return_tensors="np")["pixel_values"]  # which by itself does not cut them
        self.assertTrue(numpy.array_equal(pixels, theirs.ravel()))

    def test_qwen2_vl(self):
        self.expect_cells_of_qwen2_vl(Qwen2VLProcessor, 14)

    def test_lfm3_vl(self):
        self.expect_cells_of_qwen2_vl(Lfm3VlProcessor, 16, image_mean=[0.5] * 3, image_std=[0.5] * 3)

    def expect_cells_of_qwen2_vl(self, kind, patch, **values):
        """In the template of its folder, and in ChatML, which writes the same but for the template's own system turn."""
        side = 2 * patch
        words = tokenizer_with((templates / "qwen2vl.jinja").read_text(), start="<|vision_start|>", end="<|vision_end|>", image="<|image_pad|>",
                               video="<|video_pad|>")
        words.image_token, words.video_token = "<|image_pad|>", "<|video_pad|>"
        images = Qwen2VLImageProcessorPil(patch_size=patch, size={"shortest_edge": 4 * side * side, "longest_edge": side * side * 12}, **values)
        processor = kind(images, words, None, chat_template=words.chat_template)
        samples = [*(([said("user", None, "What is that?"), said("assistant", "The moon.")], [picture(*size)])
                     for size in ((64, 48), (97, 31), (28, 28), (200, 190), (5, 7))),
                   ([said("user", None, None, "Which is the red one?"), said("assistant", "The last.")], [picture(70, 70), picture(90, 40)]),
                   ([said("user", "First ", None, " or ", None, "?"), said("assistant", "No."), said("user", "And ", None),
                     said("assistant", "It is late.")], [picture(40, 90), picture(30, 30), picture(60, 200)])]
        system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        for options in ([], ["chatml"]):
            lines, pixels, image = self.processed(processor, side, 1, samples, "<|image_pad|>", *options)
            at = 0
            for line, (messages, shown) in zip(lines, samples):
                text = processor.apply_chat_template(messages, tokenize=False)
                theirs = processor(text=text.removeprefix(system) if options else text, images=[shown], return_tensors="np")
                ours = json.loads(line)
                self.assertEqual([image if token < 0 else token for token in ours["ids"]], theirs["input_ids"][0].tolist())
                # Lines of patches of a cell, which are there twice, as of two moments.
                patches = theirs["pixel_values"].reshape(-1, 2, 2, 3, 2, patch, patch)
                cells = patches[:, :, :, :, 0].transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, side, side)
                self.assertEqual(ours["frames"], len(cells))
                self.assertTrue(numpy.array_equal(pixels[at:at + cells.size], cells.ravel()), line)
                at += cells.size
            self.assertEqual(at, pixels.size)

    def test_pixtral(self):
        words = tokenizer_with("{% for message in messages %}{% if message['role'] == 'user' %}[INST]{% for part in message['content'] %}"
                               "{% if part['type'] == 'image' %}[IMG]{% else %}{{ part['text'] }}{% endif %}{% endfor %}[/INST]"
                               "{% else %}{{ message['content'][0]['text'] }}{{ eos_token }}{% endif %}{% endfor %}",
                               begin="[INST]", end="[/INST]", image="[IMG]", line="[IMG_BREAK]", last="[IMG_END]")
        for patch, merge in ((14, 2), (16, 1)):
            images = image_processing_pil_pixtral.PixtralImageProcessorPil(size={"longest_edge": 150}, patch_size=patch)
            processor = PixtralProcessor(images, words, patch_size=patch, spatial_merge_size=merge, chat_template=words.chat_template)
            self.expect_equal_cells(processor, patch * merge, "[IMG]")

    def test_lighton_ocr(self):
        words = tokenizer_with((templates / "qwen2vl.jinja").read_text().replace("<|vision_start|>", "").replace("<|vision_end|>", ""),
                               image="<|image_pad|>", line="<|vision_pad|>", last="<|vision_end|>")
        words.image_token, words.pad_token = "<|image_pad|>", words.eos_token
        words.image_break_token, words.image_end_token, words.image_break_token_id, words.image_end_token_id = "<|vision_pad|>", "<|vision_end|>", -8, -9
        for patch in (28, 14):  # with 14 transformers makes other images, unless it is asked for those of whole cells
            images = image_processing_pil_pixtral.PixtralImageProcessorPil(size={"longest_edge": 150}, patch_size=patch)
            processor = LightOnOcrProcessor(images, words, patch_size=14, spatial_merge_size=2, chat_template=words.chat_template)
            self.expect_equal_cells(processor, 28, "<|image_pad|>", images_kwargs={"patch_size": 28} if patch == 14 else {})

    def test_paddleocr_vl(self):
        """The template writes all images before the text, and the tokens around them; small images grow to a cell in proportion, but for rounding. One is
        more than 100 times as high as wide, which Pillow resizes vertically first."""
        words = tokenizer_with(PADDLEOCR, image="<|IMAGE_PLACEHOLDER|>", start="<|IMAGE_START|>", end="<|IMAGE_END|>", begin="<|begin_of_sentence|>")
        words.image_token, words.cls_token = "<|IMAGE_PLACEHOLDER|>", "<|begin_of_sentence|>"
        samples = [*(([said("user", None, "OCR:"), said("assistant", "The moon.")], [picture(*size)])
                     for size in ((64, 48), (97, 31), (28, 28), (200, 190), (5, 7), (300, 9), (13, 1310), (27, 29))),
                   ([said("user", None, None, "Which is the red one?"), said("assistant", "The last.")], [picture(70, 70), picture(90, 40)]),
                   ([said("system", "Read."), said("user", None, "Chart Recognition:"), said("assistant", "No."), said("user", "And ", None),
                     said("assistant", "It is late.")], [picture(40, 90), picture(60, 200)])]
        for least, most in ((1, 12), (3, 40), (20, 25)):
            images = PaddleOCRVLImageProcessorPil(size={"shortest_edge": least * 28 * 28, "longest_edge": most * 28 * 28})
            processor = PaddleOCRVLProcessor(images, words, chat_template=words.chat_template)
            lines, pixels, image = self.processed(processor, 28, 1, samples, "<|IMAGE_PLACEHOLDER|>")
            at = 0
            for line, (messages, shown) in zip(lines, samples):
                theirs = processor(text=processor.apply_chat_template(messages, tokenize=False), images=[shown], return_tensors="np")
                self.assertEqual([image if token < 0 else token for token in json.loads(line)["ids"]], theirs["input_ids"][0].tolist())
                for patches, (_, height, width) in zip(numpy.split(theirs["pixel_values"], theirs["image_grid_thw"].prod(1).cumsum()[:-1]), theirs["image_grid_thw"]):
                    cells = patches.reshape(height // 2, 2, width // 2, 2, 3, 14, 14).transpose(0, 2, 4, 1, 5, 3, 6)
                    self.assertTrue(numpy.array_equal(pixels[at:at + cells.size], cells.ravel()), line)
                    at += cells.size
            self.assertEqual(at, pixels.size)

    def test_gemma4(self):
        """Images grow and shrink to the same number of pixels, but for rounding; one is narrower than a cell."""
        words = tokenizer_with(GEMMA4, boi_token="<|image>", image="<|image|>", eoi_token="<image|>", boa_token="<|audio>", audio_token="<|audio|>",
                               eoa_token="<audio|>", video="<|video|>", begin="<|turn>", end="<turn|>", bos="<bos>")
        words.bos_token, words.image_token, words.pad_token = "<bos>", "<|image|>", words.eos_token
        samples = [*(([said("user", None, "What is that?"), said("assistant", "The moon.")], [picture(*size)])
                     for size in ((64, 48), (97, 31), (28, 28), (200, 190), (5, 7), (300, 9), (2, 500), (500, 2), (420, 168))),
                   ([said("user", None, None, "Which is the red one?"), said("assistant", "The last.")], [picture(70, 70), picture(90, 40)]),
                   ([said("system", "Look."), said("user", "First ", None, " or ", None, "?"), said("assistant", "No."), said("user", "And ", None),
                     said("assistant", "It is late.")], [picture(40, 90), picture(30, 30), picture(60, 200)])]
        for patch, pool, tokens in ((14, 2, 70), (4, 3, 140), (16, 3, 280)):
            images = Gemma4ImageProcessorPil(patch_size=patch, pooling_kernel_size=pool, max_soft_tokens=tokens)
            processor = Gemma4Processor(None, images, words, None, chat_template=words.chat_template)
            lines, pixels, image = self.processed(processor, patch * pool, 1, samples, "<|image|>")
            at = 0
            for line, (messages, shown) in zip(lines, samples):
                theirs = processor(text=processor.apply_chat_template(messages, tokenize=False), images=[shown], return_tensors="np")
                self.assertEqual([image if token < 0 else token for token in json.loads(line)["ids"]], theirs["input_ids"][0].tolist())
                for patches, places in zip(theirs["pixel_values"], theirs["image_position_ids"]):
                    width, height = (places.max(0) + 1) // pool
                    used = 2 * (patches[places[:, 0] >= 0] - 0.5)  # as the model does it
                    cells = used.reshape(height, pool, width, pool, patch, patch, 3).transpose(0, 2, 6, 1, 4, 3, 5)
                    self.assertTrue(numpy.array_equal(pixels[at:at + cells.size], cells.ravel()), line)
                    at += cells.size
            self.assertEqual(at, pixels.size)

    def test_glm(self):
        """Limits count the image twice; small images grow to a cell in proportion, but for rounding. In ChatML the tokens around an image are added."""
        words = tokenizer_with(GLM, image="<|image|>", start="<|begin_of_image|>", end="<|end_of_image|>", mask="[gMASK]", begin="<sop>",
                               user="<|user|>", assistant="<|assistant|>", system="<|system|>", think="<think>", thought="</think>")
        words.image_token = "<|image|>"
        samples = [*(([said("user", None, "Text Recognition:"), said("assistant", "The moon.")], [picture(*size)])
                     for size in ((64, 48), (97, 31), (28, 28), (200, 190), (5, 7), (300, 9), (13, 700), (27, 29), (42, 70))),
                   ([said("user", None, None, "Which is the red one?"), said("assistant", "The last.")], [picture(70, 70), picture(90, 40)]),
                   ([said("system", "Read."), said("user", None, "Table:"), said("assistant", "No."), said("user", "And ", None),
                     said("assistant", "It is late.")], [picture(40, 90), picture(60, 200)])]
        for (least, most), of_images, of_texts in (((1, 12), Glm46VImageProcessorPil, GlmProcessor), ((3, 40), Glm4vImageProcessorPil, Glm4vProcessorAlone),
                                                   ((20, 25), Glm46VImageProcessorPil, GlmProcessor)):
            images = of_images(size={"shortest_edge": 2 * least * 28 * 28, "longest_edge": 2 * most * 28 * 28})
            processor = of_texts(images, words, None, chat_template=words.chat_template)
            lines, pixels, image = self.processed(processor, 28, 1, samples, "<|image|>")
            at = 0
            for line, (messages, shown) in zip(lines, samples):
                theirs = processor(text=processor.apply_chat_template(messages, tokenize=False), images=[shown], return_tensors="np")
                self.assertEqual([image if token < 0 else token for token in json.loads(line)["ids"]], theirs["input_ids"][0].tolist())
                patches = theirs["pixel_values"].reshape(-1, 2, 2, 3, 2, 14, 14)  # of a cell, which are there twice, as of two moments
                cells = patches[:, :, :, :, 0].transpose(0, 3, 1, 4, 2, 5)
                self.assertTrue(numpy.array_equal(pixels[at:at + cells.size], cells.ravel()), line)
                at += cells.size
            self.assertEqual(at, pixels.size)
        for line, (messages, shown) in zip(self.processed(processor, 28, 1, samples, "<|image|>", "chatml")[0], samples):
            ids = json.loads(line)["ids"]
            for token in (words.convert_tokens_to_ids(name) for name in ("<|begin_of_image|>", "<|end_of_image|>")):
                self.assertEqual(ids.count(token), len(shown))

    def test_lfm2_vl(self):
        tiles = {f"tile_{row}_{column}": f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 11)}
        words = tokenizer_with(INTERNVL.replace("<IMG_CONTEXT>\n", "<image>"), first="<|image_start|>", last="<|image_end|>",
                               whole="<|img_thumbnail|>", **tiles)
        question = [said("user", None, "What is that?"), said("assistant", "The moon.")]
        samples = [*((question, [picture(*size)]) for size in ((64, 48), (97, 31), (28, 28), (300, 190), (5, 7), (130, 150), (200, 60), (60, 210), (4, 300))),
                   ([said("user", None, None, "Which is the red one?"), said("assistant", "The last.")], [picture(210, 170), picture(90, 40)]),
                   ([said("user", "First ", None, " or ", None, "?"), said("assistant", "No."), said("user", "And ", None),
                     said("assistant", "It is late.")], [picture(40, 20), picture(30, 30), picture(80, 70)])]
        sizes = {"encoder_patch_size": 7, "tile_size": 28, "min_image_tokens": 2, "max_image_tokens": 4, "max_tiles": 8}
        for options in ({}, {"use_thumbnail": False, "max_tiles": 6, "max_image_tokens": 7}, {"do_image_splitting": False}, {"max_pixels_tolerance": 4.5, "min_tiles": 4},
                        {"downsample_factor": 4, "max_image_tokens": 9, "max_tiles": 10}):
            processor, side = lfm2_vl_processor.Processor(lfm2_vl_processor.Images(**sizes | options), words), 7 * options.get("downsample_factor", 2)
            lines, pixels, image = self.processed(processor, side, 1, samples)
            at = cut = 0
            for line, (messages, shown) in zip(lines, samples):
                text = processor.apply_chat_template(messages)
                ours = json.loads(line)
                self.assertEqual([image if token < 0 else token for token in ours["ids"]], processor(text, [shown])["input_ids"][0].tolist())
                for tile in sum((processor.image_processor.tiles(one)[0] for one in shown), []):
                    tile, (_, height, width) = tile.numpy(), tile.shape
                    cells = tile.reshape(3, height // side, side, width // side, side).transpose(1, 3, 0, 2, 4)
                    self.assertTrue(numpy.array_equal(pixels[at:at + cells.size], cells.ravel()), line)
                    at += cells.size
                    cut += height == width == 28
            self.assertEqual(at, pixels.size)
            self.assertEqual(cut > 20, options.get("do_image_splitting", True))

    def expect_equal_cells(self, processor, side, image_token, **options):
        samples = [*(([said("user", None, "What is that?"), said("assistant", "The moon.")], [picture(*size)])
                     for size in ((64, 48), (97, 31), (28, 28), (300, 190), (5, 7))),
                   ([said("user", None, None, "Which is the red one?"), said("assistant", "The last.")], [picture(70, 70), picture(90, 40)]),
                   ([said("user", "First ", None, " or ", None, "?"), said("assistant", "No."), said("user", "And ", None),
                     said("assistant", "It is late.")], [picture(40, 90), picture(30, 30), picture(60, 200)])]
        lines, pixels, image = self.processed(processor, side, 1, samples, image_token)
        at = 0
        for line, (messages, shown) in zip(lines, samples):
            text = processor.apply_chat_template(messages, tokenize=False)
            theirs = processor(text=text, images=[shown], return_tensors="np", **options)
            ours = json.loads(line)
            self.assertEqual([image if token < 0 else token for token in ours["ids"]], theirs["input_ids"][0].tolist())
            for values, (height, width) in zip(theirs["pixel_values"], theirs["image_sizes"]):
                cells = values[:, :height, :width].reshape(3, height // side, side, width // side, side).transpose(1, 3, 0, 2, 4)
                self.assertTrue(numpy.array_equal(pixels[at:at + cells.size], cells.ravel()), line)
                at += cells.size
        self.assertEqual(at, pixels.size)

    def test_llava(self):
        processor = LlavaProcessor(CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size=28),
                                   tokenizer_with(LLAVA), patch_size=14, vision_feature_select_strategy="default",
                                   chat_template=LLAVA, num_additional_image_tokens=1)
        self.expect_equal(processor, 28, 4, [
            ([said("user", None, "What is that?"), said("assistant", "The moon.")], [picture(50, 33)]),
            ([said("user", None, None, "And these?"), said("assistant", "a\n\nb")], [picture(9, 80), picture(28, 28)])])

    def test_llava_next(self):
        """The tiles are one picture without its margins, and a newline stands behind each line of patches."""
        size = {"size": {"shortest_edge": 28}, "crop_size": 28}
        question = [said("user", None, "What is that?"), said("assistant", "The moon.")]
        one = [(question, [picture(*each)]) for each in ((50, 33), (9, 80), (28, 28), (80, 27), (56, 56), (1, 1), (31, 90), (300, 4), (57, 20))]
        two = [([said("user", None, None, "And these?"), said("assistant", "a\n\nb")], [picture(9, 80), picture(60, 44)])]
        for pinpoints in ([[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]], [[28, 28]], [[28 * y, 28 * x] for y in (1, 2, 3) for x in (1, 2, 3)]):
            for patch, lines in ((14, 2), (4, 7)):
                processor = LlavaNextProcessor(LlavaNextImageProcessorPil(image_grid_pinpoints=pinpoints, **size), tokenizer_with(LLAVA),
                                               patch_size=patch, vision_feature_select_strategy="default", chat_template=LLAVA,
                                               num_additional_image_tokens=1)
                self.expect_equal(processor, 28, lines * (lines + 1), one + two)

    def onevision(self, tiles):
        images = LlavaOnevisionImageProcessorPil(size={"height": 28, "width": 28}, image_mean=[0.5] * 3, image_std=[0.5] * 3,
                                                 image_grid_pinpoints=[[28 * y, 28 * x] for y in range(1, tiles + 1) for x in range(1, tiles + 1)])
        return LlavaOnevisionProcessor(images, tokenizer_with(LLAVA), None, num_image_tokens=49, vision_feature_select_strategy="full",
                                       chat_template=LLAVA)

    def test_llava_onevision(self):
        """A picture of more than nine tiles' patches is shrunk, and several images of a sample are not cut."""
        question = [said("user", None, "What is that?"), said("assistant", "The moon.")]
        one = [(question, [picture(*size)]) for size in ((50, 33), (9, 80), (28, 28), (80, 27), (110, 120), (168, 168), (1, 1), (150, 90), (300, 4),
                                                          (168, 100), (112, 112), (140, 84), (84, 84), (99, 168))]
        two = [([said("user", None, None, "And these?"), said("assistant", "a\n\nb")], [picture(9, 80), picture(60, 44)])]
        self.expect_equal(self.onevision(6), 28, 7 * 8 + 16, one + two)

    def test_videos_of_llava_onevision_are_pooled(self):
        processor = self.onevision(2)
        frames, file = [Image.new("RGB", (70, 40), color) for color in ((250, 0, 0), (0, 250, 0), (0, 0, 250))], io.BytesIO()
        frames[0].save(file, "gif", save_all=True, append_images=frames[1:], duration=1000)
        messages = [said("user", VIDEO, "What happens?"), said("assistant", "It changes.")]
        (line,), pixels, image = self.processed(processor, 28, 7 * 8 + 16, [(messages, file.getvalue())])
        shown = processor.replace_video_token({"pixel_values_videos": [numpy.zeros((3, 1))]}, 0)
        self.assertEqual(sum(token < 0 for token in json.loads(line)["ids"]), shown.count("<video>"))
        self.assertEqual(pixels.size, 3 * 3 * 28 * 28)


if __name__ == "__main__":
    unittest.main()
