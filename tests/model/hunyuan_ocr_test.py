"""Folders of HunyuanOCR against transformers: logits, loss and every gradient on texts with images of any size inside, generated tokens, and folders
that go through the engine and back.

usage: hunyuan_ocr_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import unittest

from cell_folders import IMAGE, CellFolders, edit
from with_transformers import changed_copy, engine, folder as root, run

import torch
from safetensors.torch import load_file
from transformers import HunYuanVLConfig

ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 20.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
TEXT = {"vocab_size": 262, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": None, "rope_parameters": ROPE | {"mrope_section": [2, 3, 1, 2]}}
VISION = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 2, "patch_size": 4, "max_image_size": 20}
TOKENS = {"image_token_id": IMAGE, "im_start_id": 257, "im_end_id": 258, "im_newline_id": 259}
PUBLISHED = [("model.vision_tower.patch_merger.proj_conv.", "vit.perceive.proj.0."), ("model.vision_tower.patch_merger.proj_out.", "vit.perceive.proj.2."),
             ("model.vision_tower.patch_merger.", "vit.perceive."), ("model.vision_tower.", "vit."), ("model.language_model.", "model."),
             ("layer_norm1.", "input_layernorm."), ("layer_norm2.", "post_attention_layernorm."), ("mlp.fc1.", "mlp.dense_h_to_4h."),
             ("mlp.fc2.", "mlp.dense_4h_to_h.")]


def config_of(text, vision, **changes):
    return HunYuanVLConfig(text_config=TEXT | text, vision_config=VISION | vision, **TOKENS | changes)


MODELS = {
    "usual": config_of({}, {}),
    "untied": config_of({"tie_word_embeddings": False, "attention_bias": True, "head_dim": 12, "rms_norm_eps": 1e-3,
                         "rope_parameters": {"rope_type": "default", "rope_theta": 5e4, "mrope_section": [1, 1, 3, 1]}},
                        {"rms_norm_eps": 1e-2, "patch_size": 3, "spatial_merge_size": 3, "max_image_size": 32}, tie_word_embeddings=False),
}


class HunyuanOcr(CellFolders, unittest.TestCase):
    configs = MODELS
    pictures = [[(2, 3), (5, 2)], [(3, 4)], [], [(1, 1), (1, 9)]]
    names = [("model.vision_tower.patch_merger.", ""), ("model.vision_tower.", "vision."), ("model.language_model.", "decoder.model."),
             ("lm_head.", "decoder.lm_head.")]
    further = ["<｜hy_place▁holder▁no▁100｜>", "<｜hy_place▁holder▁no▁101｜>"]
    has_token_types = True

    def shown(self, lines, columns):
        return [IMAGE + 1] + [IMAGE] * (lines * (columns + 1) + 2) + [IMAGE + 2]

    def placeholders(self, grids):
        """Of four rows of each cell, which are its own, that of a newline, and those before and behind an image."""
        first = 0
        for lines, columns in grids:
            yield first + 2
            for cell in range(lines * columns):
                yield first + 4 * cell
                if (cell + 1) % columns == 0:
                    yield first + 4 * cell + 1
            yield first + 3
            first += 4 * lines * columns

    def given_images(self, config, images, grids):
        merge, patch = config.vision_config.spatial_merge_size, config.vision_config.patch_size
        rows = [image.unflatten(2, (-1, patch)).unflatten(1, (-1, patch)).permute(1, 3, 0, 2, 4).reshape(-1, 3 * patch * patch) for image in images]
        return {"pixel_values": torch.cat(rows), "image_grid_thw": torch.tensor([[1, lines * merge, columns * merge] for lines, columns in grids])}

    def write_processor(self, folder, name, config):
        vision = config.vision_config
        (folder / "preprocessor_config.json").write_text(json.dumps(
            {"image_processor_type": "HunYuanVLImageProcessor", "patch_size": vision.patch_size, "merge_size": vision.spatial_merge_size,
             "temporal_patch_size": 1, "resample": 1, "processor_class": "HunYuanVLProcessor",
             "size": {"shortest_edge": 512 * 512, "longest_edge": 2048 * 2048}}))

    def test_folders_may_have_the_names_of_the_model_and_a_flat_config(self):
        """transformers writes the names of published folders, whose config has the numbers of the decoder beside the others."""
        def flat(config):
            text = config.pop("text_config")
            rope = text.pop("rope_parameters")
            theta, section = rope.pop("rope_theta"), rope.pop("mrope_section")
            rope.pop("rope_type")
            config |= {key: value for key, value in text.items() if key not in ("model_type", "head_dim")}
            config |= {"rope_theta": theta, "rope_scaling": rope | {"type": "xdrope", "xdrope_section": section}, "attention_head_dim": 16,
                       "model_type": "hunyuan_vl"}

        def renamed(tensors):
            for name in list(tensors):
                new = name
                for now, published in PUBLISHED:
                    if name.startswith(published):
                        new = now + name.removeprefix(published)
                        break
                for now, published in PUBLISHED[5:] if name.startswith("vit.layers") else ():
                    new = new.replace(published, now)
                tensors[new] = tensors.pop(name)
            self.assertIn("model.vision_tower.patch_merger.mlp.weight", tensors)
            self.assertIn("model.vision_tower.layers.1.mlp.fc2.bias", tensors)
        renamed_folder = changed_copy(root / "usual", flat, renamed)
        run(engine, "import", "--model", renamed_folder, "--out", root / "renamed.model")
        self.assertTrue(self.says_the_same(("usual", "renamed"), MODELS["usual"]))
        run(engine, "export", root / "renamed.model", "--huggingface", "--out", root / "renamed.back")
        self.assertEqual(set(load_file(renamed_folder / "model.safetensors")), set(load_file(root / "renamed.back" / "model.safetensors")))

    def test_folders_that_do_not_fit_are_refused(self):
        merger = "vit.perceive.mlp.weight"
        self.refused(
            (None, lambda tensors: tensors.pop(merger), f'tensor "{merger}" is missing'),
            (None, lambda tensors: tensors.update(extra=torch.ones(1)), '"extra"'),
            (edit("vision_config", "spatial_merge_size")(3), None, 'proj.0.weight" has the shape [64, 32, 2, 2]', "[64, 32, 3, 3]"),
            (edit("vision_config", "max_image_size")(24), None, 'position_embedding.weight" has the shape [26, 32]', "[37, 32]"),
            (edit("vision_config", "hidden_act")("silu"), None, "vision_config", "'hidden_act' = \"silu\""),
            (edit("vision_config", "interpolate_mode")("bicubic"), None, "vision_config", "'interpolate_mode' = \"bicubic\""),
            (edit("vision_config", "temporal_patch_size")(2), None, "vision_config", "'temporal_patch_size' = 2"),
            (edit("vision_config", "attention_dropout")(0.5), None, "vision_config", "'attention_dropout' = 0.5"),
            (edit("vision_config", "num_attention_heads")(3), None, "vision_config", "do not share 'hidden_size' = 32 evenly"),
            (edit("vision_config", "head_dim")(8), None, "vision_config", "'head_dim' = 8", "16 is"),
            (edit("vision_config", "num_channels")(1), None, "vision_config", "'num_channels' = 1"),
            (edit("text_config", "hidden_act")("gelu"), None, "text_config", "'hidden_act' = \"gelu\""),
            (edit("text_config", "attention_dropout")(0.1), None, "text_config", "'attention_dropout' = 0.1"),
            (edit("text_config", "rope_parameters", "mrope_section")([2, 2, 4]), None, "text_config", "[2, 2, 4] does not divide the 8 pairs",
             "position, width, height and image"),
            (edit("text_config", "rope_parameters", "rope_type")("ntk"), None, "text_config", '"ntk"'),
            (edit("text_config", "rope_parameters", "alpha")(-1.0), None, "text_config", "'alpha'"),
            (edit("image_token_id")(300), None, "the image token 300 is outside the vocabulary of 262 tokens"))


if __name__ == "__main__":
    unittest.main()
