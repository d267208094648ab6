"""Folders of VideoLLaMA 3 against transformers: logits, loss and every gradient on texts with images of any size inside, generated tokens, and folders
that go through the engine and back.

usage: video_llama_3_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import unittest

from cell_folders import IMAGE, CellFolders, edit
from with_transformers import engine, folder as root

import torch
from transformers import VideoLlama3Config

TEXT = {"vocab_size": 262, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4}
TOKENS = {"image_token_id": IMAGE, "video_token_id": 261}


def config_of(text, vision, **changes):
    return VideoLlama3Config(text_config={"model_type": "qwen2"} | TEXT | text, vision_config=VISION | vision, **TOKENS | changes)


MODELS = {
    "usual": config_of({}, {}),
    "tied": config_of({"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
                      {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 4, "patch_size": 6}, tie_word_embeddings=True),
}


class VideoLlama3(CellFolders, unittest.TestCase):
    configs = MODELS
    pictures = [[(2, 3), (5, 2)], [(3, 4)], [], [(1, 1), (1, 9)]]
    names = [("model.vision_model.", "vision."), ("model.projector.readout.0.", "linear_1."), ("model.projector.readout.2.", "linear_2."),
             ("model.language_model.", "decoder.model."), ("lm_head.", "decoder.lm_head.")]

    def side(self, config):
        return config.vision_config.patch_size

    def given_images(self, config, images, grids):
        patch = config.vision_config.patch_size
        return {"pixel_values": torch.cat([image.unflatten(2, (-1, patch)).unflatten(1, (-1, patch)).permute(1, 3, 0, 2, 4).flatten(0, 1).flatten(1)
                                           for image in images]),
                "image_grid_thw": torch.tensor([[1, *grid] for grid in grids]), "image_merge_sizes": torch.ones(len(grids), dtype=torch.long)}

    def write_processor(self, folder, name, config):
        (folder / "preprocessor_config.json").write_text(json.dumps(
            {"image_processor_type": "VideoLlama3ImageProcessor", "patch_size": config.vision_config.patch_size, "merge_size": 1, "temporal_patch_size": 1,
             "processor_class": "VideoLlama3Processor"}))

    def test_folders_that_do_not_fit_are_refused(self):
        projector = "model.projector.readout.2.weight"
        self.refused(
            (None, lambda tensors: tensors.pop(projector), f'tensor "{projector}" is missing'),
            (None, lambda tensors: tensors.update(extra=torch.ones(1)), '"extra"'),
            (edit("vision_config", "patch_size")(6), None, 'patch_embedding.weight" has the shape [32, 3, 4, 4]', "[32, 3, 6, 6]"),
            (edit("vision_config", "hidden_act")("relu"), None, "vision_config", "'hidden_act' = \"relu\""),
            (edit("vision_config", "attention_dropout")(0.5), None, "vision_config", "'attention_dropout' = 0.5"),
            (edit("vision_config", "spatial_merge_size")(2), None, "vision_config", "'spatial_merge_size' = 2"),
            (edit("vision_config", "rope_parameters")({"rope_type": "axial", "rope_theta": 100.0}), None, "vision_config", "a theta of 10000"),
            (edit("vision_config", "num_attention_heads")(16), None, "vision_config", "two axes share evenly"),
            (edit("text_config", "hidden_act")("gelu"), None, "text_config", "'hidden_act' = \"gelu\""),
            (edit("image_token_id")(300), None, "the image token 300 is outside the vocabulary of 262 tokens"))


if __name__ == "__main__":
    unittest.main()
