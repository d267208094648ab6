"""The processor of LFM2-VL folders: transformers' sizes, tiles, patches and texts. It resizes by torchvision, which differs from Pillow by rounding
and which the oracle's wheels do not have; here Pillow does it, and the functions of torchvision's that it calls for nothing else are left out."""
import importlib.util
import json
import sys
import types
import unittest.mock
from pathlib import Path

import numpy
import torch
from PIL import Image
from transformers.models.lfm2_vl import processing_lfm2_vl

torchvision = types.ModuleType("torchvision.transforms.v2")
torchvision.functional = types.ModuleType("torchvision.transforms.v2.functional")
file = Path(processing_lfm2_vl.__file__).with_name("image_processing_lfm2_vl.py")
spec = importlib.util.spec_from_file_location("transformers.models.lfm2_vl.image_processing_lfm2_vl", file)
module = importlib.util.module_from_spec(spec)
with unittest.mock.patch.dict(sys.modules, {"torchvision": torchvision, "torchvision.transforms": torchvision, "torchvision.transforms.v2": torchvision,
                                            spec.name: module}):
    spec.loader.exec_module(module)

WITH_TILES = module.Lfm2VlImageProcessor
NAMES = ("downsample_factor", "min_tiles", "max_tiles", "use_thumbnail", "min_image_tokens", "max_image_tokens", "encoder_patch_size", "tile_size",
         "max_pixels_tolerance")


def resized(images, size, **_):
    pixels = Image.fromarray(images[0].permute(1, 2, 0).numpy()).resize((size.width, size.height), Image.BILINEAR)
    return torch.from_numpy(numpy.array(pixels)).permute(2, 0, 1)[None]


class Images:
    def __init__(self, **own):
        self.own = {"image_processor_type": "Lfm2VlImageProcessorFast"} | own
        self.options = {name: own.get(name, getattr(WITH_TILES, name)) for name in NAMES}
        vars(self).update(self.options)

    def save_pretrained(self, folder):
        (folder / "preprocessor_config.json").write_text(json.dumps(self.own))

    def tiles(self, image):
        """The values of each tile, [3, height, width]; rows and columns of tiles; the size of the whole image."""
        options = self.options | ({} if self.own.get("do_image_splitting", True) else {"min_tiles": 1, "max_tiles": 1})
        pixels = torch.from_numpy(numpy.array(image.convert("RGB"))).permute(2, 0, 1)[None]
        with unittest.mock.patch.object(WITH_TILES.__mro__[1], "resize", staticmethod(resized)):
            tiles, rows, columns, sizes = WITH_TILES.resize_and_split(WITH_TILES.__new__(WITH_TILES), pixels, resample=None, **options)
        half = numpy.float32(0.5)
        values = [((tile.numpy() * numpy.float64(1 / 255)).astype(numpy.float32) - half) / half for tile in tiles[0]]
        return [torch.from_numpy(tile) for tile in values], rows[0], columns[0], sizes[0]

    def inputs(self, images):
        tiles, patch = sum((self.tiles(image)[0] for image in images), []), self.options["encoder_patch_size"]
        patches = [module.convert_image_to_patches(tile[None], patch) for tile in tiles]
        padded = [module.pad_along_first_dim(one, max(one.shape[1] for one in patches)) for one in patches]
        return {"pixel_values": torch.cat([one for one, _ in padded]), "pixel_attention_mask": torch.stack([mask for _, mask in padded]),
                "spatial_shapes": torch.tensor([[side // patch for side in tile.shape[1:]] for tile in tiles])}


class Processor(processing_lfm2_vl.Lfm2VlProcessor):
    def __init__(self, images, words):
        self.image_processor, self.tokenizer, self.image_token = images, words, "<image>"
        self.image_token_id = words.convert_tokens_to_ids("<image>")
        self.image_start_token, self.image_end_token, self.image_thumbnail_token = "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"

    def apply_chat_template(self, messages, tokenize=False, **options):
        return self.tokenizer.apply_chat_template(messages, tokenize=tokenize, **options)

    def __call__(self, text, images, **_):
        shown, parts = images[0], text.split(self.image_token)
        for place, image in enumerate(shown):
            parts[place] += self.replacement(image)
        words = self.tokenizer("".join(parts), return_tensors="pt")
        return {name: words[name] for name in ("input_ids", "attention_mask")} | (self.image_processor.inputs(shown) if shown else {})

    def replacement(self, image):
        options = self.image_processor.options
        _, rows, columns, size = self.image_processor.tiles(image)
        counts = self._get_image_num_tokens(size, **options)
        return self._build_image_tokens(rows, columns, *counts, options["use_thumbnail"], True)


def processor_of(folder, words):
    own = json.loads((folder / "preprocessor_config.json").read_text())
    return Processor(Images(**{name: own[name] for name in own if name in NAMES}), words)
