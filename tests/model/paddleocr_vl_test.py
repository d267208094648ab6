"""Folders of PaddleOCR-VL against transformers: logits, loss and every gradient on texts with images of any size inside, generated tokens, and folders
that go through the engine and back.

usage: paddleocr_vl_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import unittest

from cell_folders import IMAGE, CellFolders, edit
from with_transformers import changed_copy, engine, folder as root, run

import torch
from transformers import PaddleOCRVLConfig

TEXT = {"vocab_size": 262, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": None, "bos_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [2, 3, 3]}}
VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4, "image_size": 20}
TOKENS = {"image_token_id": IMAGE, "video_token_id": 259, "vision_start_token_id": 257, "vision_end_token_id": 258}


def config_of(text, vision, **changes):
    return PaddleOCRVLConfig(text_config=TEXT | text, vision_config=VISION | vision, **TOKENS | changes)


MODELS = {
    "usual": config_of({}, {}),
    "biased": config_of({"use_bias": True, "head_dim": 8, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
                          "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}},
                         {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "image_size": 15, "patch_size": 3, "spatial_merge_size": 3},
                         tie_word_embeddings=False),
}


class PaddleOcrVl(CellFolders, unittest.TestCase):
    configs = MODELS
    pictures = [[(2, 3), (5, 2)], [(3, 4)], [], [(1, 1), (1, 9)]]  # grids of patches larger and smaller than that of learned positions
    names = [("model.visual.vision_model.", "vision."), ("model.projector.pre_norm.", "ln_q."), ("model.projector.linear_1.", "mlp.0."),
             ("model.projector.linear_2.", "mlp.2."), ("model.language_model.", "decoder.model."), ("lm_head.", "decoder.lm_head.")]
    further = ["<|IMAGE_START|>", "<|IMAGE_END|>"]
    has_token_types = True

    def given_images(self, config, images, grids):
        patch, merge = config.vision_config.patch_size, config.vision_config.spatial_merge_size
        return {"pixel_values": torch.cat([image.unflatten(2, (-1, patch)).unflatten(1, (-1, patch)).permute(1, 3, 0, 2, 4).flatten(0, 1)
                                           for image in images]),
                "image_grid_thw": torch.tensor([[1, lines * merge, columns * merge] for lines, columns in grids])}

    def write_processor(self, folder, name, config):
        vision = config.vision_config
        (folder / "preprocessor_config.json").write_text(json.dumps(
            {"image_processor_type": "PaddleOCRVLImageProcessor", "patch_size": vision.patch_size, "merge_size": vision.spatial_merge_size,
             "temporal_patch_size": 1, "auto_map": {"AutoProcessor": "processing_paddleocr_vl.PaddleOCRVLProcessor"}}))

    def test_words_of_published_folders(self):
        """Keys of the text model beside the others, the tower's old model_type, and weights that nobody reads."""
        def as_published(config):
            text = config.pop("text_config")
            config |= {key: value for key, value in text.items() if key not in ("rope_parameters", "model_type")}
            config |= {"tie_word_embeddings": False, "rope_theta": text["rope_parameters"]["rope_theta"], "use_3d_rope": True, "sliding_window": None,
                       "rope_scaling": {"mrope_section": text["rope_parameters"]["mrope_section"], "rope_type": "default", "type": "default"}}
            config["vision_config"] |= {"model_type": "paddleocr_vl", "temporal_patch_size": 2, "tokens_per_second": 2}
            del config["vision_config"]["rope_parameters"]

        def with_unread(tensors):
            tensors["visual.vision_model.embeddings.packing_position_embedding.weight"] = torch.ones(64, 32)
            tensors["visual.vision_model.head.attention.in_proj_weight"] = torch.ones(96, 32)
        run(engine, "import", "--model", changed_copy(root / "biased", as_published, with_unread), "--out", root / "published.model")
        self.assertTrue(self.says_the_same(("biased", "published"), MODELS["biased"]))

    def test_names_of_transformers_are_read(self):
        """Those that its model has inside; it saves under the published ones."""
        def renamed(tensors):
            for name in list(tensors):
                for theirs, inside in (("mlp_AR.", "model.projector."), ("visual.", "model.visual."), ("model.", "model.language_model.")):
                    if name.startswith(theirs):
                        tensors[inside + name.removeprefix(theirs)] = tensors.pop(name)
                        break
        run(engine, "import", "--model", changed_copy(root / "usual", None, renamed), "--out", root / "renamed.model")
        self.assertTrue(self.says_the_same(("usual", "renamed"), MODELS["usual"]))

    def test_folders_that_do_not_fit_are_refused(self):
        projector = "mlp_AR.linear_1.weight"
        self.refused(
            (None, lambda tensors: tensors.pop(projector), f'tensor "{projector}" is missing'),
            (None, lambda tensors: tensors.update(extra=torch.ones(1)), '"extra"'),
            (edit("vision_config", "spatial_merge_size")(3), None, f'"{projector}" has the shape [128, 128]', "[288, 288]"),
            (edit("vision_config", "image_size")(28), None, 'position_embedding.weight" has the shape [25, 32]', "[49, 32]"),
            (edit("vision_config", "hidden_act")("relu"), None, "vision_config", "'hidden_act' = \"relu\""),
            (edit("vision_config", "rope_parameters", "rope_theta")(100.0), None, "vision_config", "a theta of 10000"),
            (edit("vision_config", "num_attention_heads")(16), None, "vision_config", "two axes share evenly"),
            (edit("text_config", "use_bias")(True), None, 'self_attn.q_proj.bias" is missing'),
            (edit("text_config", "rope_parameters", "mrope_section")([2, 2, 2]), None, "text_config", "does not divide the 8 pairs"),
            (edit("image_token_id")(300), None, "the image token 300 is outside the vocabulary of 262 tokens"))


if __name__ == "__main__":
    unittest.main()
