"""Tiny whole models (LLaVA, LLaVA-NeXT, LLaVA-OneVision, InternVL, Qianfan-OCR, Ovis2, Granite Docling, Gemma 3, PaliGemma, Idefics3, SmolVLM, DeepSeek-VL) of transformers with random weights, the same as model
directories, and a batch of texts with images inside. The script's first argument is FVLM_ENGINE."""
import json

from byte_tokenizer import tokenizer
from with_transformers import assert_near, draw, engine, folder as root, run, with_float64

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForImageTextToText, CLIPVisionConfig, DeepseekVLConfig, Gemma2Config, Gemma3Config, Gemma3TextConfig,
                          GemmaConfig, GraniteConfig, GraniteDoclingConfig, Idefics3Config, InternVLConfig, InternVLVisionConfig, LlamaConfig, LlavaConfig, LlavaNextConfig,
                          LlavaOnevisionConfig, Ovis2Config, PaliGemmaConfig, QianfanOCRConfig, Qwen2Config, Qwen3Config, SiglipVisionConfig, SmolVLMConfig)
from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

VOCABULARY, IMAGE = 260, 256
VISION = {"hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28, "patch_size": 7}
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2}
BOUNDS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}  # of Gemma 2
GRIDS = [[28, 56], [56, 28], [56, 56], [112, 112]]
SIZES = [[(12, 50), (50, 12)], [(30, 30)], []]  # of each text's images, height and width, where their number of rows depends on it
INDICATORS = range(250, 255)  # tokens around images of Ovis2 and between their tiles
TILES = [[(1, 2), (0, 0)], [(2, 3)], []]  # lines and columns of its images' tiles; 0: they are not cut
LARGE = [(100, 112)]  # in place of the second for LLaVA-OneVision, which shrinks it


def llava(vision, text, **changes):
    return LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, **changes)


def llava_next(vision, text, kind=LlavaNextConfig, **changes):
    return kind(vision_config=vision, text_config=text, image_token_index=IMAGE, image_grid_pinpoints=GRIDS, **changes)


def idefics3(kind, **changes):
    return kind(vision_config=dict(VISION), text_config=LlamaConfig(**TEXT), image_token_id=IMAGE, **changes)


def internvl(vision, text, **changes):
    return InternVLConfig(vision_config=InternVLVisionConfig(**VISION, **vision), text_config=text, image_token_id=IMAGE, **changes)


def qianfan_ocr(vision, **changes):
    return QianfanOCRConfig(vision_config=VISION | vision, text_config=Qwen3Config(**TEXT, head_dim=12), image_token_id=IMAGE, **changes)


def ovis2(vision, text, **changes):
    return Ovis2Config(vision_config=VISION | {"vocab_size": 45, "hidden_stride": 2} | vision, text_config=text, image_token_id=IMAGE,
                       visual_indicator_token_ids=list(INDICATORS), hidden_size=TEXT["hidden_size"], vocab_size=VOCABULARY, **changes)


def granite_docling(vision, **changes):
    text = TEXT | {"num_hidden_layers": 3, "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.1, "logits_scaling": 2.0}
    return GraniteDoclingConfig(vision_config=VISION | {"out_hidden_size": TEXT["hidden_size"], "scale_factor": 2} | vision, text_config=text,
                                image_token_id=IMAGE, **changes)


def gemma3(windows, **changes):
    text = Gemma3TextConfig(**TEXT, head_dim=12, query_pre_attn_scalar=9, **windows)
    return Gemma3Config(vision_config=SiglipVisionConfig(**VISION, vision_use_head=False), text_config=text, image_token_index=IMAGE, **changes)


def paligemma(kind, **changes):
    return PaliGemmaConfig(vision_config=SiglipVisionConfig(**VISION, vision_use_head=False), projection_dim=TEXT["hidden_size"],
                           text_config=kind(**TEXT, head_dim=16, **changes), image_token_index=IMAGE)


def deepseek_vl(vision, **changes):
    return DeepseekVLConfig(vision_config=SiglipVisionConfig(**VISION, **vision), text_config=LlamaConfig(**TEXT), image_token_id=IMAGE, **changes)


MODELS = {
    "llava-clip-llama": llava(CLIPVisionConfig(**VISION), LlamaConfig(**TEXT)),
    "llava-clip-qwen2": llava(CLIPVisionConfig(**VISION), Qwen2Config(**TEXT, tie_word_embeddings=True),
                              vision_feature_select_strategy="full"),
    "llava-siglip-llama": llava(SiglipVisionConfig(**VISION), LlamaConfig(**TEXT), vision_feature_select_strategy="full"),
    "llava-siglip-qwen2": llava(SiglipVisionConfig(**VISION, vision_use_head=False), Qwen2Config(**TEXT), vision_feature_layer=1,
                                vision_feature_select_strategy="full"),
    "llava-clip-layers": llava(CLIPVisionConfig(**VISION), LlamaConfig(**TEXT), vision_feature_layer=[-2, 1, -2]),
    "llava-siglip-gemma2": llava(SiglipVisionConfig(**VISION, vision_use_head=False), Gemma2Config(**TEXT, head_dim=16, **BOUNDS),
                                 vision_feature_select_strategy="full", tie_word_embeddings=True),
    "llava-next-clip-llama": llava_next(CLIPVisionConfig(**VISION), LlamaConfig(**TEXT)),
    "llava-next-siglip-qwen2": llava_next(SiglipVisionConfig(**VISION, vision_use_head=False), Qwen2Config(**TEXT),
                                          vision_feature_select_strategy="full"),
    "granite-vision": llava_next(SiglipVisionConfig(**VISION), GraniteConfig(**TEXT, embedding_multiplier=12.0, residual_multiplier=0.22,
                                 attention_multiplier=0.05, logits_scaling=8.0), vision_feature_layer=[-3, 2, -1],
                                 vision_feature_select_strategy="full", tie_word_embeddings=True),
    "llava-onevision": llava_next(SiglipVisionConfig(**VISION, vision_use_head=False), Qwen2Config(**TEXT | {"max_position_embeddings": 256},
                                  tie_word_embeddings=True), kind=LlavaOnevisionConfig, video_token_index=IMAGE + 1),
    "idefics3": idefics3(Idefics3Config),
    "smolvlm": idefics3(SmolVLMConfig, scale_factor=4, tie_word_embeddings=True),
    "internvl-qwen2": internvl({"attention_bias": True}, Qwen2Config(**TEXT)),
    "internvl-qwen3": internvl({"use_qk_norm": True, "norm_type": "rms_norm"}, Qwen3Config(**TEXT, head_dim=12), tie_word_embeddings=False),
    "internvl-llama": internvl({"use_mean_pooling": False}, LlamaConfig(**TEXT), vision_feature_layer=-2),
    "qianfan-ocr": qianfan_ocr({}),
    "qianfan-ocr-tied": qianfan_ocr({"use_qk_norm": True, "attention_bias": False, "use_mean_pooling": False, "use_mask_token": True},
                                    tie_word_embeddings=True),
    "ovis2": ovis2({}, Qwen2Config(**TEXT | {"max_position_embeddings": 256})),
    "ovis2-untied": ovis2({"hidden_stride": 4, "vocab_size": 21, "rms_norm_eps": 1e-2, "intermediate_size": 70},
                          Qwen2Config(**TEXT | {"num_key_value_heads": 4}), tie_word_embeddings=False),
    "granite-docling": granite_docling({"deepstack_visual_indexes": [0, 2]}, density_router_hidden_size=20),
    "granite-docling-untied": granite_docling({"deepstack_visual_indexes": [1], "use_fine_route": False, "hidden_act": "gelu"}, tie_word_embeddings=False),
    "granite-docling-without-deepstack": granite_docling({"deepstack_visual_indexes": [], "scale_factor": 4, "layer_norm_eps": 1e-3}),
    "gemma3": gemma3({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5}, mm_tokens_per_image=4),
    "gemma3-large-images": gemma3({"sliding_window": 3}, mm_tokens_per_image=16, tie_word_embeddings=True),
    "deepseek-vl": deepseek_vl({}, tie_word_embeddings=False),
    "deepseek-vl-tied": deepseek_vl({"vision_use_head": False, "hidden_act": "gelu"}),
    "paligemma": paligemma(GemmaConfig),
    # The prompts of texts_of() fit in a window, and the texts do not.
    "paligemma2": paligemma(Gemma2Config, query_pre_attn_scalar=9, sliding_window=6, **BOUNDS),
}
ATTENTION = {name: {"attn_implementation": "eager"} for name in ("llava-siglip-gemma2", "paligemma2")}  # others bound no scores
FILES = {"tokenizer.json": tokenizer(), "tokenizer_config.json": '{"image_token": "<image>"}', "chat_template.jinja": "{{ messages }}",
         "preprocessor_config.json": '{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}, "crop_size": 28}', "processor_config.json": '{"patch_size": 7}'}
LLAVA_NEXT_IMAGES = {"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 28}, "crop_size": 28,
                     "image_grid_pinpoints": GRIDS}
LLAVA_ONEVISION_IMAGES = {"image_processor_type": "LlavaOnevisionImageProcessor", "size": {"height": 28, "width": 28},
                          "image_grid_pinpoints": GRIDS}
OF_THE_ENCODER = ("preprocessor_config.json", "processor_config.json")


def make(name):
    """A model of transformers in which every weight matters, saved under NAME, and a model directory of it, NAME.model."""
    torch.manual_seed(1)
    model = AutoModelForImageTextToText.from_config(MODELS[name], **ATTENTION.get(name, {})).eval()
    draw(model)
    model.save_pretrained(root / name)
    for file, content in FILES.items():
        (root / name / file).write_text(content)
    if has_grids(name):
        images = LLAVA_ONEVISION_IMAGES if is_onevision(name) else LLAVA_NEXT_IMAGES
        (root / name / "preprocessor_config.json").write_text(json.dumps(images))
    run(engine, "import", "--model", root / name, "--out", root / f"{name}.model")
    return model


models = {}  # of transformers, by their names, those that a test has made


def make_models(names=MODELS):
    models.update((name, make(name)) for name in names)


def has_grids(name):
    return MODELS[name].model_type in ("llava_next", "llava_onevision")


def is_onevision(name):
    return MODELS[name].model_type == "llava_onevision"


def is_ovis2(name):
    return MODELS[name].model_type == "ovis2"


def sizes_of(name):
    """Of each text's images; of Ovis2's their tiles."""
    if is_ovis2(name):
        return TILES
    return [SIZES[0], LARGE, []] if is_onevision(name) else SIZES


def frames_per_image(name, size):
    is_cut = has_grids(name) and not (is_onevision(name) and size in SIZES[0])  # LLaVA-OneVision cuts none of several images
    if is_ovis2(name):
        return size[0] * size[1] + 1
    return image_size_to_num_patches(size, GRIDS, 28) if is_cut else 1


def row_numbers(name, size, first):
    """The placeholders of an image whose first frame is that of this number: the tiles come first, and each of a frame's 4 lines of
    patches has a newline. transformers says it, given the numbers of rows in place of features."""
    tiles, each = frames_per_image(name, size) - 1, 24 if is_onevision(name) else 20
    patches = torch.tensor([place // 4 * 5 + place % 4 for place in range(16)])
    features = torch.stack([each * (first + frame) + patches for frame in (tiles, *range(tiles))])[:, :, None].double()
    (numbers,), _ = models[name].model.pack_image_features([features], torch.tensor([size]), image_newline=torch.tensor([each * first + 4.0]),
                                                           **({} if is_onevision(name) else {"vision_feature_select_strategy": "default"}))
    rows = [-16 - round(number) for number in numbers[:, 0].tolist()]
    if [size] == LARGE:  # 4 x 4 tiles with a margin of a line above and below; their 14 lines of 16 patches become 11 of 12
        lines, columns, margin = 11, 12, 1
        shrunk = [-(1 << 30) - ((margin << 8 | 4 << 4 | 4) << 14 | patch) for patch in range(lines * columns)]
        assert len(rows) == 16 + lines * (columns + 1), len(rows)
        for line in range(lines):
            rows[16 + line * (columns + 1):16 + line * (columns + 1) + columns] = shrunk[line * columns:(line + 1) * columns]
    return rows


def rows_of_ovis2(name, size):
    """The rows of an image in their order: a frame and the number of one of its own rows, or None and that of an indicator. The tiles come first."""
    own, (lines, columns) = range(rows_per_image(name)), size
    rows = [(None, 0)] + [(lines * columns, row) for row in own] + [(None, 1)]
    for tile in range(lines * columns):
        rows += [(None, 2 if tile % columns else 3)] * (tile > 0) + [(tile, row) for row in own]
    return rows + [(None, 4)]


def numbers_of_ovis2(name, size, first):
    """The placeholders of an image whose first frame is that of this number: each frame has its own rows, and behind them those of indicators."""
    own = rows_per_image(name)
    each = own + len(INDICATORS)
    return [-16 - (first * each + own + row if frame is None else (first + frame) * each + row) for frame, row in rows_of_ovis2(name, size)]


def placeholders_of(name):
    """Of each image of each text."""
    out, first = [], 0
    for sizes in sizes_of(name):
        out.append([])
        begin = first
        for size in sizes:
            numbers = numbers_of_ovis2 if is_ovis2(name) else row_numbers
            out[-1].append(numbers(name, size, first - begin) if has_grids(name) or is_ovis2(name) else [-1] * rows_per_image(name))
            first += frames_per_image(name, size)
    return out


def rows_per_image(name):
    config = MODELS[name]
    if config.model_type == "llava":
        return 16 + (config.vision_config.model_type == "clip_vision_model" and config.vision_feature_select_strategy == "full")
    if config.model_type in ("internvl", "qianfan_ocr"):
        return int(16 * config.downsample_ratio ** 2)
    if config.model_type == "ovis2":
        return 16 // config.vision_config.hidden_stride ** 2
    if config.model_type == "gemma3":
        return config.mm_tokens_per_image
    if config.model_type in ("paligemma", "deepseek_vl"):
        return 16
    if config.model_type == "granite_docling":
        return 16 // config.vision_config.scale_factor ** 2
    return 16 // config.scale_factor ** 2


def texts_of(name):
    """Token ids of three texts: two images and text around them, one image at the very beginning, and none."""
    (a, b), (c,), _ = ([[IMAGE] * len(image) for image in images] for images in placeholders_of(name))
    if is_ovis2(name):
        a, b, c = ([INDICATORS[row] if frame is None else IMAGE for frame, row in rows_of_ovis2(name, size)] for sizes in TILES for size in sizes)
    counts = [sum(frames_per_image(name, size) for size in sizes) for sizes in sizes_of(name)]
    return [[5, 9] + a + [11, 3] + b + [7, 8, 1, 30], c + [17, 22, 4], [40, 41, 42, 43]], counts


def masks_of(texts):
    """Which tokens are labels: two thirds of those that are no image."""
    return [torch.tensor([token < INDICATORS[0] and place % 3 != 1 and place > 0 for place, token in enumerate(text)]) for text in texts]


def is_text(tokens):
    return torch.tensor(tokens) < INDICATORS[0]


def frames_of(count):
    return torch.randn(count, 3, 28, 28, generator=torch.Generator().manual_seed(6))


def write_batch(name, path):
    texts, counts = texts_of(name)
    rows = iter(row for images in placeholders_of(name) for image in images for row in image)
    ids = torch.tensor([next(rows) if token >= INDICATORS[0] else token for text in texts for token in text])
    save_file({"frames": frames_of(sum(counts)), "frame_counts": torch.tensor(counts), "input_ids": ids,
               "loss_mask": torch.cat(masks_of(texts)).to(torch.uint8), "text_lengths": torch.tensor([len(text) for text in texts])}, path)


def whole_first(name, sizes, pixels):
    """The frames of each image as transformers has them."""
    return [image.roll(1, 0) for image in pixels.split([frames_per_image(name, size) for size in sizes])]


def pixels_for(name, text, pixels, prompt=None):
    """What transformers' model gets beside a text's tokens, of which so many are the prompt: those before the first label, or all."""
    if MODELS[name].model_type == "paligemma":
        types = torch.arange(len(text)) >= (masks_of([text])[0].int().argmax() if prompt is None else prompt)
        return {"token_type_ids": types.long()[None]} | ({"pixel_values": pixels} if IMAGE in text else {})
    if IMAGE not in text:
        return {}
    if has_grids(name):  # of each image the whole one first, and empty ones behind the tiles of those that have fewer
        sizes = sizes_of(name)[texts_of(name)[0].index(text)]
        images = whole_first(name, sizes, pixels)
        several = {"batch_num_images": torch.tensor([len(sizes)])} if is_onevision(name) else {}
        return {"pixel_values": torch.nn.utils.rnn.pad_sequence(images, batch_first=True), "image_sizes": torch.tensor(sizes)} | several
    if is_ovis2(name):
        return {"pixel_values": torch.cat(whole_first(name, TILES[texts_of(name)[0].index(text)], pixels))}
    if MODELS[name].model_type == "granite_docling":
        return {"pixel_values": pixels[None], "pixel_attention_mask": torch.ones(1, len(pixels), dtype=torch.bool)}
    if MODELS[name].model_type == "gemma3":
        return {"pixel_values": pixels, "token_type_ids": torch.tensor([text]).eq(IMAGE).long()}
    return {"pixel_values": pixels if MODELS[name].model_type in ("llava", "internvl", "qianfan_ocr", "deepseek_vl") else pixels[None]}


def logits_of(model, name):
    """transformers' logits of each text."""
    texts, counts = texts_of(name)
    images = iter(frames_of(sum(counts)).to(model.dtype).split(counts))
    out = []
    for text in texts:
        out.append(model(input_ids=torch.tensor([text]), **pixels_for(name, text, next(images))).logits[0])
    return out


def part_name(name):
    """The name in the model directory of a parameter of transformers' model."""
    for theirs, ours in (("model.vision_tower.transformer.", ""), ("model.vision_tower.head_", "connector:head_"),
                         ("model.visual_embeddings_table.", "connector:visual_embeddings_table."), ("model.vision_model.connector.", "connector:"), ("model.vision_tower.", ""), ("model.vision_model.", ""), ("model.multi_modal_projector.", "connector:"),
                         ("model.connector.", "connector:"), ("model.aligner.linear1.", "connector:linear_1."), ("model.aligner.linear2.", "connector:linear_2."), ("model.image_newline", "connector:image_newline"),
                         ("model.language_model.", "decoder.model."),
                         ("model.text_model.", "decoder.model."), ("lm_head.", "decoder.lm_head.")):
        if name.startswith(theirs):
            prefix = ours.replace("connector:", "") if ours else "vision."
            return prefix + name.removeprefix(theirs)
    raise AssertionError(name)


def expected_of(model, name):
    """Loss, logits and every gradient, by our names, that transformers computes of the batch in the model's type of numbers."""
    model.zero_grad()
    texts, _ = texts_of(name)
    logits = logits_of(model, name)
    loss = torch.cat([F.cross_entropy(row[:-1], torch.tensor(text)[1:], reduction="none")[mask[1:]]
                      for row, text, mask in zip(logits, texts, masks_of(texts))]).mean()
    loss.backward()
    return {"grad." + part_name(key): p.grad for key, p in model.named_parameters() if p.grad is not None} | {
        "loss": loss.detach(), "logits": torch.cat([row[is_text(text)] for row, text in zip(logits, texts)]).detach()}


class Comparison:
    def compare(self, name, model):
        """Logits, loss and every gradient of the batch, of the model directory NAME.model and of transformers' model."""
        write_batch(name, root / "batch.safetensors")
        run(engine, "trace", root / f"{name}.model", "--batch", root / "batch.safetensors", "--grads", "--out",
            root / "trace.safetensors")
        ours = load_file(root / "trace.safetensors")
        expected, exact = with_float64(lambda model: expected_of(model, name), model)
        self.assertEqual({key for key in ours if key.startswith("grad.")} - set(expected), set())
        assert_near(ours, expected, exact, name)
