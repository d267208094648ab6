"""Folders of GLM-OCR, GLM-4.1V and GLM-4.6V against transformers: logits, loss and every gradient on texts with images of any size inside, generated tokens, and folders
that go through the engine and back.

usage: glm_ocr_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import unittest

from cell_folders import IMAGE, CellFolders, edit
from with_transformers import changed_copy, engine, folder as root, run

import torch
from safetensors.torch import load_file
from transformers import Glm46VConfig, Glm4vConfig, GlmOcrConfig

TEXT = {"vocab_size": 262, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0}}
VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "patch_size": 4, "out_hidden_size": 48}
TOKENS = {"image_token_id": IMAGE, "video_token_id": 259, "image_start_token_id": 257, "image_end_token_id": 258, "video_start_token_id": 260,
          "video_end_token_id": 261}


def config_of(text, vision, of=GlmOcrConfig, **changes):
    return of(text_config=TEXT | text, vision_config=VISION | vision, **TOKENS | changes)


# Half of a head's features are rotated, as in the published models. Positions are learned of 5 x 5 patches, or 7 x 7: of fewer than images have, or more.
HALF = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
GLM4V_TEXT = {"head_dim": 16, "hidden_size": 64, "rope_parameters": HALF}


MODELS = {
    "usual": config_of({}, {}),
    "partial": config_of({"head_dim": 24, "rms_norm_eps": 1e-3, "num_key_value_heads": 4, "hidden_size": 64,
                          "rope_parameters": {"rope_type": "default", "rope_theta": 5e4, "mrope_section": [4, 1, 1], "partial_rotary_factor": 0.5}},
                         {"attention_bias": False, "rms_norm_eps": 1e-2, "patch_size": 3, "spatial_merge_size": 3, "temporal_patch_size": 1,
                          "out_hidden_size": 64},
                         tie_word_embeddings=True),
    "glm4v": config_of(GLM4V_TEXT, {"out_hidden_size": 64, "image_size": 20}, Glm4vConfig),
    "glm4v-other": config_of({"hidden_size": 96, "num_attention_heads": 8, "head_dim": 12, "rms_norm_eps": 1e-3,
                              "rope_parameters": HALF | {"partial_rotary_factor": 1.0, "mrope_section": [3, 2, 1]}},
                             {"rms_norm_eps": 1e-2, "patch_size": 3, "spatial_merge_size": 3, "temporal_patch_size": 1, "out_hidden_size": 96,
                              "image_size": 23}, Glm4vConfig, tie_word_embeddings=True),
    "glm46v": config_of(GLM4V_TEXT | {"model_type": "glm4v_text"}, {"out_hidden_size": 64, "image_size": 40, "model_type": "glm4v_vision"}, Glm46VConfig),
}


class GlmOcr(CellFolders, unittest.TestCase):
    configs = MODELS
    pictures = [[(2, 3), (5, 2)], [(3, 4)], [], [(1, 1), (1, 9)]]
    names = [("model.visual.downsample.", "downsample."), ("model.visual.merger.", ""), ("model.visual.", "vision."),
             ("model.language_model.", "decoder.model."), ("lm_head.", "decoder.lm_head.")]
    further = ["<|begin_of_image|>", "<|end_of_image|>"]
    has_token_types = True

    def given_images(self, config, images, grids):
        vision = config.vision_config
        merge, patch = vision.spatial_merge_size, vision.patch_size
        rows = [image.unflatten(2, (-1, merge, patch)).unflatten(1, (-1, merge, patch)).permute(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3, 1, patch, patch)
                for image in images]
        return {"pixel_values": torch.cat(rows).expand(-1, -1, vision.temporal_patch_size, -1, -1).flatten(1),
                "image_grid_thw": torch.tensor([[1, lines * merge, columns * merge] for lines, columns in grids])}

    def write_processor(self, folder, name, config):
        vision = config.vision_config
        (folder / "preprocessor_config.json").write_text(json.dumps(
            {"image_processor_type": "Glm46VImageProcessor", "patch_size": vision.patch_size, "merge_size": vision.spatial_merge_size,
             "temporal_patch_size": vision.temporal_patch_size, "processor_class": "Glm46VProcessor",
             "size": {"shortest_edge": 12544, "longest_edge": 9633792}}))

    def test_the_layer_that_drafts_is_left_out(self):
        """Published folders have it behind the others, as one layer more."""
        def with_draft(tensors):
            for name in list(tensors):
                if ".layers.1." in name and "language_model" in name:
                    tensors[name.replace(".layers.1.", ".layers.2.")] = tensors[name] + 1
            tensors["model.language_model.layers.2.eh_proj.weight"] = torch.ones(48, 96)
        run(engine, "import", "--model", changed_copy(root / "usual", edit("text_config", "num_nextn_predict_layers")(1), with_draft), "--out",
            root / "drafting.model")
        self.assertTrue(self.says_the_same(("usual", "drafting"), MODELS["usual"]))
        run(engine, "export", root / "drafting.model", "--huggingface", "--out", root / "drafting.back")
        self.assertEqual(*(set(load_file(root / name / "model.safetensors")) for name in ("usual", "drafting.back")))

    def test_folders_that_do_not_fit_are_refused(self):
        merger = "model.visual.merger.proj.weight"
        self.refused(
            (None, lambda tensors: tensors.pop(merger), f'tensor "{merger}" is missing'),
            (None, lambda tensors: tensors.update(extra=torch.ones(1)), '"extra"'),
            (edit("vision_config", "spatial_merge_size")(3), None, 'downsample.weight" has the shape [48, 32, 2, 2]', "[48, 32, 3, 3]"),
            (edit("vision_config", "out_hidden_size")(40), None, "'out_hidden_size' = 40", "'hidden_size' = 48"),
            (edit("vision_config", "hidden_act")("gelu"), None, "vision_config", "'hidden_act' = \"gelu\""),
            (edit("vision_config", "attention_dropout")(0.5), None, "vision_config", "'attention_dropout' = 0.5"),
            (edit("vision_config", "rope_parameters", "rope_theta")(100.0), None, "vision_config", "a theta of 10000"),
            (edit("vision_config", "num_heads")(16), None, "vision_config", "two axes share evenly"),
            (edit("vision_config", "in_channels")(1), None, "vision_config", "'in_channels' = 1"),
            (edit("text_config", "hidden_act")("gelu"), None, "text_config", "'hidden_act' = \"gelu\""),
            (edit("text_config", "attention_dropout")(0.1), None, "text_config", "'attention_dropout' = 0.1"),
            (edit("text_config", "rope_parameters", "mrope_section")([2, 2, 2]), None, "text_config", "does not divide the 8 pairs"),
            (edit("text_config", "rope_parameters", "partial_rotary_factor")(0.2), None, "text_config", "'partial_rotary_factor' = 0.2", "is odd"),
            (edit("text_config", "rope_parameters")({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "mrope_section": [2, 1, 1],
                                                     "partial_rotary_factor": 0.5, "original_max_position_embeddings": 64}), None,
             "text_config", "8 of a head's 16 features"),
            (edit("image_token_id")(300), None, "the image token 300 is outside the vocabulary of 262 tokens"))

    def test_folders_of_glm4v_that_do_not_fit_are_refused(self):
        positions = "model.visual.embeddings.position_embedding.weight"
        self.refused(
            (edit("vision_config", "image_size")(24), None, f'"{positions}" has the shape [25, 32]', "[36, 32]"),
            (edit("vision_config", "image_size")(3), None, "vision_config", "'image_size' = 3", "a patch of 4 pixels or more"),
            (edit("vision_config", "attention_bias")(True), None, "vision_config", "'attention_bias' = true", "only false is"),
            (edit("vision_config", "out_hidden_size")(40), None, "'out_hidden_size' = 40", "'hidden_size' = 64"),
            (edit("vision_config", "intermediate_size")(41), None, 'gate_proj.weight" has the shape [40, 64]', "[41, 64]"),
            (edit("text_config", "head_dim")(24), None, "text_config", "'head_dim' = 24"),
            (edit("text_config", "model_type")("glm4v_moe_text"), None, "text_config", "glm4v_moe_text"),
            (edit("model_type")("glm4v_moe"), None, "glm4v_moe"), of="glm4v")


if __name__ == "__main__":
    unittest.main()
