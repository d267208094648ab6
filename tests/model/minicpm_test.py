"""Folders of MiniCPM-V 4.6 against transformers: logits, loss and every gradient on texts with images of any size inside, generated tokens, and folders
that go through the engine and back.

usage: minicpm_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import unittest

from cell_folders import IMAGE, CellFolders, edit
from with_transformers import changed_copy, engine, folder as root, run

import torch
from safetensors.torch import load_file
from transformers import MiniCPMV4_6Config

OF_QWEN3 = {"model_type": "qwen3", "vocab_size": 262, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2}
# One delta rule: rounding grows from one to the next, and the gradients of three are not within the tolerance on every processor.
TEXT = OF_QWEN3 | {"model_type": "qwen3_5_text", "num_hidden_layers": 2, "head_dim": 32, "rms_norm_eps": 0.1, "linear_num_key_heads": 2,
                   "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 8,
                   "layer_types": ["linear_attention", "full_attention"],
                   "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True,
                                       "partial_rotary_factor": 0.25}}
VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 20, "patch_size": 4}


def config_of(text, vision, kind=MiniCPMV4_6Config, **changes):
    return kind(text_config=text, vision_config=VISION | vision, **{"insert_layer_id": 1, "image_token_id": IMAGE, "video_token_id": 261} | changes)


MODELS = {
    "usual": config_of(TEXT, {}, tie_word_embeddings=True),
    "of_qwen3": config_of(OF_QWEN3, {"image_size": 21, "patch_size": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-3}, insert_layer_id=0),
    "of_4_patches": config_of(OF_QWEN3 | {"tie_word_embeddings": True}, {}, downsample_mode="4x"),
}


class MiniCpm(CellFolders, unittest.TestCase):
    configs = MODELS
    pictures = [[(2, 3), (5, 2)], [(3, 4)], [], [(1, 1), (1, 9)]]  # grids of patches larger and smaller than that of learned positions
    names = [("model.vision_tower.", "vision."), ("model.merger.mlp.0.pre_norm.", "layer_norm."), ("model.merger.mlp.0.", ""),
             ("model.language_model.", "decoder.model."), ("lm_head.", "decoder.lm_head.")]
    further = ["<|image_pad|>", "</image>"]
    image_processor = "MiniCPMV4_6ImageProcessor"

    def patches(self, config):
        return 2 if config.downsample_mode == "4x" else 4

    def side(self, config):
        return self.patches(config) * config.vision_config.patch_size

    def adjust(self, model):
        """States that last a few rows: of shorter ones a gradient is little more than rounding."""
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                torch.nn.init.normal_(parameter, std=0.3)

    def given_images(self, config, images, grids):
        """Patches side by side."""
        patch = config.vision_config.patch_size
        rows = [image.unflatten(1, (-1, patch)).transpose(1, 2).flatten(2) for image in images]
        return {"pixel_values": torch.cat(rows, 2)[None], "target_sizes": torch.tensor(grids) * self.patches(config)}

    def write_processor(self, folder, name, config):
        (folder / "preprocessor_config.json").write_text(json.dumps(
            {"image_processor_type": self.image_processor, "patch_size": config.vision_config.patch_size,
             "downsample_mode": config.downsample_mode, "scale_resolution": 8 * self.side(config), "max_slice_nums": 4}))

    def test_layers_that_draft_and_a_layer_of_the_tower_alone_change_nothing(self):
        """The whole model's config says behind which layer squares are merged, whatever the tower's says."""
        drafting = changed_copy(root / "usual", edit("vision_config", "insert_layer_id")(6),
                                lambda tensors: tensors.update({"mtp.fc.weight": torch.ones(48, 96)}))
        run(engine, "import", "--model", drafting, "--out", root / "drafting.model")
        self.assertTrue(self.says_the_same(("usual", "drafting"), self.configs["usual"]))

    def test_folders_that_do_not_fit_are_refused(self):
        merger = "model.vision_tower.vit_merger.linear_1.weight"
        self.refused(
            (None, lambda tensors: tensors.pop(merger), f'tensor "{merger}" is missing'),
            (None, lambda tensors: tensors.update(extra=torch.ones(1)), '"extra"'),
            (edit("downsample_mode")("8x"), None, "'downsample_mode' = \"8x\"", "16x and 4x are"),
            (edit("insert_layer_id")(3), None, "'insert_layer_id' = 3", "one of the 3 layers"),
            (edit("insert_layer_id")(-1), None, "'insert_layer_id' = -1"),
            (edit("merger_times")(2), None, "'merger_times' = 2"),
            (edit("merge_kernel_size")([4, 4]), None, "'merge_kernel_size' = [4,4]"),
            (edit("drop_vision_last_layer")(True), None, "'drop_vision_last_layer' = true"),
            (edit("vision_config", "window_kernel_size")([4, 4]), None, "'window_kernel_size' = [4,4]"),
            (edit("vision_config", "patch_size")(5), None, 'patch_embedding.weight" has the shape [32, 3, 4, 4]', "[32, 3, 5, 5]"))

    def test_image_processors_that_do_not_fit_are_refused(self):
        self.refused_processors(({"downsample_mode": "8x"}, "'downsample_mode' = \"8x\"", "16x and 4x are"), ({"do_resize": False}, "'do_resize' = false"),
                                ({"min_pixels": 9}, "'min_pixels' = 9"), ({"upscale": 9}, "upscale"))

    def refused_processors(self, *cases):
        for change, *words in cases:
            with self.subTest(words[0]):
                copy = changed_copy(root / "usual")
                file = copy / "preprocessor_config.json"
                file.write_text(json.dumps(json.loads(file.read_text()) | change))
                said = run(engine, "import", "--model", copy, "--out", root / "refused", code=4)
                for word in words:
                    self.assertIn(word, said)


if __name__ == "__main__":
    unittest.main()
