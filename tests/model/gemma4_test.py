"""Folders of Gemma 4 against transformers: logits, loss and every gradient on texts with images of any size inside, generated tokens, and folders that
go through the engine and back.

usage: gemma4_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import unittest

from cell_folders import IMAGE, CellFolders, edit
from with_transformers import changed_copy, engine, folder as root, run

import torch
from transformers import Gemma4Config

TYPES = ["sliding_attention", "full_attention"]
TEXT = {"vocab_size": 262, "vocab_size_per_layer_input": 262, "hidden_size": 48, "intermediate_size": 96, "hidden_size_per_layer_input": 8,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 24, "max_position_embeddings": 256, "pad_token_id": 0,
        "bos_token_id": None, "eos_token_id": 1, "num_hidden_layers": 5, "layer_types": 2 * TYPES + TYPES[1:], "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True, "sliding_window": 6, "final_logit_softcapping": 5.0}
VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
          "patch_size": 4, "position_embedding_size": 40}
TOKENS = {"image_token_id": IMAGE, "boi_token_id": 257, "eoi_token_id": 258, "video_token_id": 900, "audio_token_id": 901, "boa_token_id": 902,
          "eoa_token_index": 903}  # those from 900 on are not in the vocabulary, so that no answer has them


def config_of(text, vision, **changes):
    return Gemma4Config(text_config=TEXT | text, vision_config=VISION | vision, audio_config=None, **TOKENS | changes)


MODELS = {
    "usual": config_of({}, {"use_clipped_linears": True}),
    "unshared": config_of({"num_kv_shared_layers": 0, "tie_word_embeddings": False, "hidden_size_per_layer_input": 0, "num_key_value_heads": 2,
                           "num_hidden_layers": 2, "layer_types": TYPES, "final_logit_softcapping": None},
                          {"standardize": True, "pooling_kernel_size": 2, "rms_norm_eps": 1e-5}, tie_word_embeddings=False),
}


class Gemma4(CellFolders, unittest.TestCase):
    configs = MODELS
    pictures = [[(2, 3), (5, 2)], [(3, 4)], [], [(1, 1), (1, 9)]]
    names = [("model.vision_tower.", "vision."), ("model.embed_vision.", ""), ("model.language_model.", "decoder.model."),
             ("lm_head.", "decoder.lm_head.")]
    further = ["<|image>", "<image|>"]
    files = ["processor_config.json", "tokenizer.json"]

    def side(self, config):
        return config.vision_config.pooling_kernel_size * config.vision_config.patch_size

    def adjust(self, model):
        """Buffers, and scores that are not so sharp, having no factor, that float32 rounds gradients by more than is allowed."""
        for name, parameter in model.named_parameters():
            if name.endswith("q_norm.weight"):
                parameter.data *= 0.15
        drawn = torch.Generator().manual_seed(3)
        for name, buffer in model.named_buffers():
            for end, least, range in (("input_min", -2.5, 0.3), ("input_max", 2.0, 0.3), ("output_min", -1.8, 0.3), ("output_max", 2.2, 0.3),
                                      ("layer_scalar", 0.5, 1.0), ("std_scale", 0.5, 1.0), ("std_bias", -1.0, 2.0)):
                if name.endswith(end):
                    buffer.copy_(least + range * torch.rand(buffer.shape, generator=drawn))

    def given_images(self, config, images, grids):
        patch = config.vision_config.patch_size
        most = max(image[0].numel() for image in images) // patch ** 2
        pixels, places = torch.zeros(len(images), most, 3 * patch ** 2), torch.full((len(images), most, 2), -1)
        for index, image in enumerate(images):
            lines = ((image + 1) / 2).unflatten(2, (-1, patch)).unflatten(1, (-1, patch)).permute(1, 3, 2, 4, 0).flatten(2)
            count = lines.shape[0] * lines.shape[1]
            pixels[index, :count] = lines.flatten(0, 1)
            places[index, :count] = torch.stack(torch.meshgrid(torch.arange(lines.shape[1]), torch.arange(lines.shape[0]), indexing="xy"),
                                                -1).flatten(0, 1)
        return {"pixel_values": pixels, "image_position_ids": places}

    def write_processor(self, folder, name, config):
        vision = config.vision_config
        (folder / "processor_config.json").write_text(json.dumps({"image_processor": {
            "image_processor_type": "Gemma4ImageProcessor", "patch_size": vision.patch_size, "pooling_kernel_size": vision.pooling_kernel_size,
            "max_soft_tokens": 70}}))

    def test_published_folders_have_more(self):
        """An audio tower, and keys and values of layers that read those of others. Both are left out."""
        def with_audio(config):
            config["audio_config"] = {"model_type": "gemma4_audio", "hidden_size": 8}

        def with_unread(tensors):
            tensors["model.audio_tower.output_proj.weight"] = torch.ones(4, 4)
            tensors["model.embed_audio.embedding_projection.weight"] = torch.ones(4, 4)
            tensors["model.language_model.layers.4.self_attn.k_proj.weight"] = torch.ones(24, 48)
            tensors["model.language_model.layers.4.self_attn.v_proj.weight"] = torch.ones(24, 48)
            tensors["model.language_model.layers.4.self_attn.k_norm.weight"] = torch.ones(24)
        run(engine, "import", "--model", changed_copy(root / "usual", with_audio, with_unread), "--out", root / "published.model")
        self.assertTrue(self.says_the_same(("usual", "published"), MODELS["usual"]))
        run(engine, "export", root / "published.model", "--huggingface", "--out", root / "published.back")
        self.assertIsNone(json.loads((root / "published.back" / "config.json").read_text())["audio_config"])

    def test_folders_that_do_not_fit_are_refused(self):
        projection, scalar = "model.embed_vision.embedding_projection.weight", "model.language_model.layers.0.layer_scalar"
        self.refused(
            (None, lambda tensors: tensors.pop(projection), f'tensor "{projection}" is missing'),
            (None, lambda tensors: tensors.pop(scalar), f'tensor "{scalar}" is missing'),
            (None, lambda tensors: tensors.update(extra=torch.ones(1)), '"extra"'),
            (edit("text_config", "attention_k_eq_v")(True), None, "text_config", "'attention_k_eq_v' = true"),
            (edit("text_config", "enable_moe_block")(True), None, "text_config", "'enable_moe_block' = true"),
            (edit("text_config", "use_bidirectional_attention")("vision"), None, "text_config", "'use_bidirectional_attention' = \"vision\""),
            (edit("text_config", "pad_token_id")(3), None, "text_config", "'pad_token_id' = 3"),
            (edit("text_config", "num_kv_shared_layers")(4), None, "text_config", "layer 1 would read the keys"),
            (edit("text_config", "vocab_size_per_layer_input")(100), None, "text_config", "100 is less than 'vocab_size' = 262"),
            (edit("text_config", "rope_parameters", "full_attention", "rope_type")("yarn"), None, "full_attention", "'rope_type' = \"yarn\""),
            (edit("text_config", "per_layer_config", "1", "head_dim")(32), None, "per_layer_config", "heads of one size"),
            (edit("text_config", "hidden_activation")("silu"), None, "text_config", "'hidden_activation' = \"silu\""),
            (edit("vision_config", "hidden_activation")("relu"), None, "vision_config", "'hidden_activation' = \"relu\""),
            (edit("image_token_id")(300), None, "the image token 300 is outside the vocabulary of 262 tokens"))


if __name__ == "__main__":
    unittest.main()
