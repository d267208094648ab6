"""Folders of LFM2-VL against transformers: logits, loss and every gradient on texts with images of any size inside, generated tokens, adapters and
folders that go through the engine and back.

usage: lfm2_vl_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import unittest

from cell_folders import IMAGE, CellFolders, edit
from with_transformers import changed_copy, engine, folder as root, run

import torch
import torch.nn.functional as F
from transformers import Lfm2Config, Lfm2VlConfig, Siglip2VisionConfig

TEXT = {"vocab_size": 262, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2,
        "block_multiple_of": 8, "full_attn_idxs": [1]}
VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "vision_use_head": False}


def config_of(text, vision, **changes):
    return Lfm2VlConfig(text_config=Lfm2Config(**TEXT | text), vision_config=Siglip2VisionConfig(**VISION | vision), image_token_id=IMAGE,
                        projector_hidden_size=56, **changes)


MODELS = {
    "usual": config_of({}, {"patch_size": 4, "num_patches": 16}),
    "changed": config_of({"conv_bias": True, "conv_L_cache": 4}, {"patch_size": 3, "num_patches": 9, "hidden_act": "gelu", "vision_use_head": True},
                         downsample_factor=3, projector_bias=False, projector_use_layernorm=False, tie_word_embeddings=False),
}


class Lfm2Vl(CellFolders, unittest.TestCase):
    configs = MODELS
    pictures = [[(2, 3), (5, 2)], [(3, 4)], [], [(1, 1), (1, 9)]]  # grids of patches larger and smaller than that of learned positions
    names = [("model.vision_tower.", "vision."), ("model.multi_modal_projector.", ""), ("model.language_model.", "decoder.model."),
             ("lm_head.", "decoder.lm_head.")]
    further = ["<|image_start|>", "<|image_end|>"]

    def side(self, config):
        return config.downsample_factor * config.vision_config.patch_size

    def shown(self, lines, columns):
        return [257] + [IMAGE] * (lines * columns) + [258]

    def given_images(self, config, images, grids):
        """Lines of patches, padded to one number of them."""
        patch = config.vision_config.patch_size
        patches = [image.unflatten(2, (-1, patch)).unflatten(1, (-1, patch)).permute(1, 3, 2, 4, 0).reshape(-1, 3 * patch * patch) for image in images]
        most = max(map(len, patches))
        return {"pixel_values": torch.stack([F.pad(one, (0, 0, 0, most - len(one))) for one in patches]),
                "pixel_attention_mask": torch.stack([(torch.arange(most) < len(one)).int() for one in patches]),
                "spatial_shapes": torch.tensor(grids) * config.downsample_factor}

    def write_processor(self, folder, name, config):
        (folder / "preprocessor_config.json").write_text(json.dumps(
            {"image_processor_type": "Lfm2VlImageProcessorFast", "encoder_patch_size": config.vision_config.patch_size,
             "downsample_factor": config.downsample_factor, "tile_size": 4 * self.side(config)}))

    def test_words_of_published_folders(self):
        """The text model's keys of the first files, and a key for tied embeddings of another name."""
        def as_published(config):
            config["tie_embedding"] = config.pop("tie_word_embeddings")
            text = config["text_config"]
            text |= {"full_attn_idxs": [1], "tie_embedding": True, "block_ff_dim": text["intermediate_size"], "theta": 1e6}
            del text["layer_types"]
        run(engine, "import", "--model", changed_copy(root / "usual", as_published), "--out", root / "published.model")
        self.assertTrue(self.says_the_same(("usual", "published"), MODELS["usual"]))

    def test_folders_that_do_not_fit_are_refused(self):
        projector = "model.multi_modal_projector.linear_1.weight"
        self.refused(
            (None, lambda tensors: tensors.pop(projector), f'tensor "{projector}" is missing'),
            (None, lambda tensors: tensors.update(extra=torch.ones(1)), '"extra"'),
            (edit("downsample_factor")(3), None, "multi_modal_projector", "[288]"),
            (edit("projector_hidden_size")(8), None, f'tensor "{projector}" has the shape [56, 128]', "[8, 128]"),
            (edit("projector_hidden_act")("relu"), None, "'projector_hidden_act' = \"relu\""),
            (edit("vision_config", "num_patches")(15), None, "'num_patches' = 15", "a square number is"),
            (edit("vision_config", "patch_size")(5), None, 'patch_embedding.weight" has the shape [32, 48]', "[32, 75]"),
            (edit("text_config", "layer_types")(["conv"]), None, "text_config", "there are 3 layers"))


if __name__ == "__main__":
    unittest.main()
