"""Folders with smaller sizes in the form of published ones, of versions of transformers from 4.36 on: the keys of their config.json, old
and new, and weights in several files. Logits, loss and every gradient are those of transformers, and the folders come back equal.

usage: published_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import unittest

import whole_models
from with_transformers import draw, engine, folder as root, run
from whole_models import FILES, GRIDS, IMAGE, INDICATORS, LLAVA_NEXT_IMAGES, LLAVA_ONEVISION_IMAGES, Comparison

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText

SIGLIP = {"hidden_size": 32, "image_size": 28, "intermediate_size": 80, "model_type": "siglip_vision_model", "num_attention_heads": 2,
          "num_hidden_layers": 4, "patch_size": 7}
SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
         "vocab_size": 260}
QWEN = {"attention_dropout": 0.0, "bos_token_id": 43, "eos_token_id": 45, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "torch_dtype": "bfloat16", "use_cache": True,
        "use_sliding_window": False} | SIZES
INTERNVIT = {"architectures": ["InternVLVisionModel"], "attention_bias": True, "attention_dropout": 0.0, "dropout": 0.0, "hidden_act": "gelu",
             "hidden_dropout_prob": 0.0, "hidden_size": 32, "image_size": [28, 28], "initializer_factor": 0.1, "initializer_range": 1e-10,
             "intermediate_size": 80, "layer_norm_eps": 1e-06, "layer_scale_init_value": 0.1, "model_type": "internvl_vision",
             "norm_type": "layer_norm", "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 3, "patch_size": [7, 7],
             "projection_dropout": 0.0, "torch_dtype": "bfloat16", "use_absolute_position_embeddings": True, "use_mask_token": False,
             "use_mean_pooling": True, "use_qk_norm": False}
INTERNVL = {"architectures": ["InternVLForConditionalGeneration"], "downsample_ratio": 0.5, "image_seq_length": 4, "image_token_id": IMAGE,
            "model_type": "internvl", "projector_hidden_act": "gelu", "vision_config": INTERNVIT, "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default"}


def smolvlm2(layers, heads, scale, **text):
    """SmolVLM2-256M, -500M and -2.2B-Instruct, whose text_config and vision_config have keys of the code that they were trained with."""
    return {
        "architectures": ["SmolVLMForConditionalGeneration"], "image_token_id": IMAGE, "model_type": "smolvlm", "pad_token_id": 2,
        "scale_factor": scale, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.47.1", "use_cache": False,
        "use_reentrant_checkpointing": False, "vocab_size": 260,
        "text_config": SIZES | {
            "_flash_attn_2_enabled": True, "_name_or_path": "None", "architectures": ["VLlama3ForCausalLM"], "head_dim": 12,
            "is_llama_config": True, "max_position_embeddings": 8192, "model_type": "llama", "neftune_noise_alpha": 0.0, "pad_token_id": 2,
            "num_hidden_layers": layers, "num_key_value_heads": heads, "pixel_shuffle_factor": scale, "qk_layer_norms": False,
            "perceiver_config": {"_attn_implementation_autoset": False, "attention_dropout": 0.0, "model_type": "vllama3", "num_key_value_heads": 1},
            "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_theta": 100000, "torch_dtype": "bfloat16", "use_resampler": False,
            "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16", "q4f16": "float16"}}} | text,
        "vision_config": {
            "hidden_size": 32, "image_size": 28, "intermediate_size": 80, "max_image_size": {"longest_edge": 28}, "model_type": "smolvlm_vision",
            "num_attention_heads": 2, "num_hidden_layers": 3, "patch_size": 7, "size": {"longest_edge": 56}, "tie_word_embeddings": False,
            "use_base_siglip": False}}


CONFIGS = {
    "InternVL3-1B-hf": INTERNVL | {
        "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0",
        "text_config": QWEN | {"architectures": ["Qwen2ForCausalLM"], "max_window_layers": 70, "model_type": "qwen2", "sliding_window": None,
                               "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}}},
    "InternVL3_5-1B-HF": INTERNVL | {
        "dtype": "bfloat16", "tie_word_embeddings": True, "transformers_version": "4.56.0",
        "text_config": QWEN | {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 12, "max_window_layers": 28,
                               "layer_types": ["full_attention"] * 2, "model_type": "qwen3", "rope_scaling": None, "sliding_window": None}},
    "Ovis2-8B-hf": {
        "architectures": ["Ovis2ForConditionalGeneration"], "hidden_size": 48, "image_token_id": IMAGE, "model_type": "ovis2",
        "torch_dtype": "bfloat16", "transformers_version": "4.56.0", "visual_indicator_token_ids": list(INDICATORS), "vocab_size": 260,
        "text_config": QWEN | {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention"] * 2, "max_window_layers": 28, "model_type": "qwen2",
                               "rope_scaling": None, "sliding_window": None, "tie_word_embeddings": False},
        "vision_config": {"attention_dropout": 0.0, "backbone_kwargs": {}, "depths": None, "drop_cls_token": False, "hidden_act": "silu", "hidden_size": 32,
                          "hidden_stride": 2, "image_size": 28, "initializer_range": 0.02, "intermediate_size": 80, "mlp_bias": False,
                          "model_type": "ovis2_vision", "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 3,
                          "num_visual_indicator_tokens": 5, "patch_size": 7, "qkv_bias": False, "rms_norm_eps": 1e-05, "tau": 1.0,
                          "tokenize_function": "softmax", "torch_dtype": "bfloat16", "vocab_size": 45}},
    "granite-docling-258M": {
        "architectures": ["Idefics3ForConditionalGeneration"], "bos_token_id": 4, "dtype": "bfloat16", "eos_token_id": 2, "image_token_id": IMAGE,
        "model_type": "idefics3", "pad_token_id": 2, "scale_factor": 4, "tie_word_embeddings": True, "transformers_version": "4.56.1", "use_cache": True,
        "vocab_size": 260,
        "text_config": SIZES | {
            "_name_or_path": "models/granitev06_hf_ai4k_sft_data_v4", "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 4, "dtype": "bfloat16", "eos_token_id": 2, "head_dim": 12, "hidden_act": "silu", "initializer_range": 0.02,
            "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama", "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
            "rope_scaling": None, "rope_theta": 100000.0, "tie_word_embeddings": True, "use_cache": False},
        "vision_config": {"attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32, "image_size": 28, "initializer_range": 0.02,
                          "intermediate_size": 80, "layer_norm_eps": 1e-06, "max_image_size": {"longest_edge": 28}, "model_type": "idefics3_vision",
                          "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 3, "patch_size": 7, "size": {"longest_edge": 28}}},
    "SmolVLM2-256M-Video-Instruct": smolvlm2(2, 2, 4),
    "SmolVLM2-500M-Video-Instruct": smolvlm2(3, 1, 4, rope_scaling=None),
    "SmolVLM2-2.2B-Instruct": smolvlm2(2, 4, 2, rope_theta=130000, max_position_embeddings=16384),
    "llava-1.5-7b-hf": {
        "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_token_index": IMAGE, "model_type": "llava",
        "pad_token_id": 1, "projector_hidden_act": "gelu", "torch_dtype": "float16", "transformers_version": "4.36.0.dev0",
        "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
        "text_config": SIZES | {"_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096,
                                "model_type": "llama", "rms_norm_eps": 1e-05, "torch_dtype": "float16"},
        "vision_config": {"hidden_size": 32, "image_size": 28, "intermediate_size": 80, "model_type": "clip_vision_model",
                          "num_attention_heads": 2, "num_hidden_layers": 4, "patch_size": 7, "projection_dim": 24, "vocab_size": 32000}},
    "llava-interleave-qwen-0.5b-hf": {
        "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_token_index": IMAGE, "model_type": "llava",
        "pad_token_id": 45, "projector_hidden_act": "gelu", "torch_dtype": "float32", "transformers_version": "4.41.2",
        "vision_feature_layer": -1, "vision_feature_select_strategy": "full", "vision_config": SIGLIP | {"vision_use_head": False},
        "text_config": QWEN | {"_name_or_path": "Qwen/Qwen1.5-0.5B-Chat", "architectures": ["Qwen2ForCausalLM"], "max_window_layers": 21,
                               "model_type": "qwen2", "num_key_value_heads": 4, "sliding_window": 32768, "tie_word_embeddings": True}},
    "llava-onevision-qwen2-0.5b-ov-hf": {
        "architectures": ["LlavaOnevisionForConditionalGeneration"], "ignore_index": -100, "image_grid_pinpoints": GRIDS,
        "image_token_index": IMAGE, "model_type": "llava_onevision", "projector_hidden_act": "gelu", "tie_word_embeddings": False,
        "torch_dtype": "float16", "transformers_version": "4.45.0.dev0", "use_image_newline_parameter": True, "video_token_index": IMAGE + 1,
        "vision_aspect_ratio": "anyres_max_9", "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
        "vision_config": SIGLIP | {"vision_use_head": False},
        "text_config": QWEN | {"_name_or_path": "Qwen/Qwen2-0.5B-Instruct", "architectures": ["Qwen2ForCausalLM"], "max_window_layers": 24,
                               "model_type": "qwen2", "tie_word_embeddings": True}},
    "granite-vision-3.2-2b": {
        "architectures": ["LlavaNextForConditionalGeneration"], "ignore_index": -100, "image_grid_pinpoints": GRIDS, "image_seq_length": 576,
        "image_token_index": IMAGE, "model_type": "llava_next", "multimodal_projector_bias": True, "pad_token_id": 0,
        "projector_hidden_act": "gelu", "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.49.0",
        "use_image_newline_parameter": True, "vision_feature_layer": [-4, -3, -2, -1], "vision_feature_select_strategy": "full",
        "vision_config": SIGLIP | {"torch_dtype": "bfloat16"},
        "text_config": SIZES | {
            "_name_or_path": "ibm-granite/granite-3.1-2b-instruct", "architectures": ["GraniteForCausalLM"], "attention_bias": False,
            "attention_dropout": 0.1, "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
            "hidden_act": "silu", "initializer_range": 0.02, "logits_scaling": 8.0, "max_position_embeddings": 131072, "mlp_bias": False,
            "model_type": "granite", "pad_token_id": 0, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None,
            "rope_theta": 300000, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True}},
    "paligemma2-3b-mix-224": {
        "_vocab_size": 260, "architectures": ["PaliGemmaForConditionalGeneration"], "bos_token_id": 2, "eos_token_id": 1, "hidden_size": 48,
        "image_token_index": IMAGE, "model_type": "paligemma", "pad_token_id": 0, "projection_dim": 48, "torch_dtype": "bfloat16",
        "transformers_version": "4.47.0.dev0",
        "text_config": SIZES | {
            "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid", "eos_token_id": [1, 107],
            "final_logit_softcapping": 30.0, "head_dim": 16, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
            "model_type": "gemma2", "num_image_tokens": 16, "query_pre_attn_scalar": 16, "sliding_window": 18, "torch_dtype": "bfloat16"},
        "vision_config": SIGLIP | {"num_image_tokens": 16, "num_positions": 16, "projection_dim": 48, "torch_dtype": "bfloat16",
                                   "vision_use_head": False}},
}


def make(name):
    """A folder with the published config.json, whose tensors lie in several files, and a model directory of it."""
    place = root / name
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIGS[name]))
    config = AutoConfig.from_pretrained(place)
    whole_models.MODELS[name] = config
    if name in ("InternVL3-1B-hf", "Ovis2-8B-hf"):  # which have heads of their own and do not say so
        config.tie_word_embeddings = False
    torch.manual_seed(1)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    draw(model)
    model.save_pretrained(place, max_shard_size="100KB")
    assert (place / "model.safetensors.index.json").exists()
    written = CONFIGS[name] | {"dtype" if "dtype" in CONFIGS[name] else "torch_dtype": "float32"}
    (place / "config.json").write_text(json.dumps(written))
    for file, content in FILES.items():
        (place / file).write_text(content)
    if whole_models.has_grids(name):
        images = LLAVA_ONEVISION_IMAGES if whole_models.is_onevision(name) else LLAVA_NEXT_IMAGES
        (place / "preprocessor_config.json").write_text(json.dumps(images))
    run(engine, "import", "--model", place, "--out", root / f"{name}.model")
    return model


def tensors_in(path):
    return {key: tensor for file in path.glob("*.safetensors") for key, tensor in load_file(file).items()}


class Published(Comparison, unittest.TestCase):
    def test_numbers_are_those_of_transformers_and_folders_come_back(self):
        for name in CONFIGS:
            with self.subTest(name):
                model = whole_models.models[name] = make(name)
                self.compare(name, model)
                run(engine, "export", root / f"{name}.model", "--huggingface", "--out", root / f"{name}.back")
                before, after = (tensors_in(root / place) for place in (name, f"{name}.back"))
                self.assertEqual(set(before), set(after))
                self.assertEqual([key for key, tensor in before.items() if not torch.equal(tensor, after[key])], [])
                configs = [json.loads((root / place / "config.json").read_text()) for place in (name, f"{name}.back")]
                if name.startswith("Ovis2"):  # which does not say it: the file's own head does
                    configs[0]["tie_word_embeddings"] = False
                self.assertEqual(configs[0], configs[1])


if __name__ == "__main__":
    unittest.main()
