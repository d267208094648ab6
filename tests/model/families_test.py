"""Decoders of Llama's family and of Gemma 4's against transformers: logits, loss and every gradient, generated tokens, and folders that go through
the engine and back.

usage: families_test.py FVLM_ENGINE; exit 77 where transformers is missing."""
import json
import shutil
import unittest

from byte_tokenizer import tokenizer
from with_transformers import assert_near, engine, folder, run, save_small_vision, with_experts_apart, with_float64

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, CLIPVisionConfig, Dinov2WithRegistersConfig,
                          Dinov2WithRegistersModel, GraniteConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, Ministral3Config, MistralConfig,
                          Ernie4_5Config, Gemma2Config, GemmaConfig, Gemma3TextConfig, Gemma4TextConfig, Glm4Config, Glm4vTextConfig, Glm4vTextModel, GlmOcrTextConfig, GlmOcrTextModel, HunYuanDenseV1Config, HunYuanVLTextConfig, Lfm2Config, Lfm2MoeConfig, Lfm3Config, NanoChatConfig, Olmo2Config, Qwen2Config, Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel, Qwen2VLTextConfig,
                          Qwen2VLTextModel, Qwen3Config, Qwen3MoeConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3VLMoeTextConfig, Qwen3VLMoeTextModel,
                          Qwen3VLTextConfig, Qwen3VLTextModel, SmolLM3Config)
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.glm4v.modeling_glm4v import Glm4vPreTrainedModel
from transformers.models.glm_ocr.modeling_glm_ocr import GlmOcrPreTrainedModel
from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLPreTrainedModel, HunYuanVLTextModel
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLPreTrainedModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLPreTrainedModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLPreTrainedModel
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoePreTrainedModel

LENGTHS = [61, 1, 17, 40]  # beyond the original 16 positions of the scaled ones
VOCABULARY = 61

LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
MINISTRAL = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}  # queries are scaled from the 16th position on
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 3, 2]}
QWEN3_5 = {"head_dim": 16, "rms_norm_eps": 3e-3, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
           "linear_value_head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
                                                           "mrope_section": [2, 2, 2], "mrope_interleaved": True}}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
LFM3 = {"head_dim": 16, "sliding_window": 8, "layer_types": ["conv", "full_attention", "sliding_attention"], "rope_parameters": {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e3, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e2}}}
GEMMA4 = {"head_dim": 16, "global_head_dim": 24, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300, "sliding_window": 8,
          "final_logit_softcapping": 2.0, "tie_word_embeddings": True, "rope_parameters": {
              "full_attention": {"rope_type": "proportional", "rope_theta": 1e3, "partial_rotary_factor": 0.25},
              "sliding_attention": {"rope_type": "default", "rope_theta": 1e2}}}
MODELS = {
    "llama-default": (LlamaConfig, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}}),
    "llama-linear": (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}}),
    "llama-llama3": (LlamaConfig, {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama-yarn": (LlamaConfig, {"rope_parameters": YARN, "head_dim": 32}),
    "llama-yarn-set": (LlamaConfig, {"rope_parameters": YARN | {"attention_factor": 1.3, "beta_fast": 4.0, "beta_slow": 2.0,
                                                                 "truncate": False}}),
    "llama-yarn-mscale": (LlamaConfig, {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}}),
    "llama-biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "mistral-window": (MistralConfig, {"sliding_window": 128, "head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "mistral-short-window": (MistralConfig, {"sliding_window": 5}),
    "ministral3": (Ministral3Config, {"rope_parameters": MINISTRAL, "head_dim": 16}),
    # With a beta of 0.5 scores are so sharp that float32 rounds gradients by 1.5e-5; in float64 they are transformers'.
    "ministral3-window": (Ministral3Config, {"rope_parameters": MINISTRAL | {"llama_4_scaling_beta": 0.2}, "sliding_window": 20,
                                             "head_dim": 24, "tie_word_embeddings": True}),
    "smollm3": (SmolLM3Config, {"no_rope_layer_interval": 2}),
    "smollm3-yarn": (SmolLM3Config, {"no_rope_layers": [0, 1, 0], "rope_parameters": YARN, "tie_word_embeddings": False}),
    "granite": (GraniteConfig, {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.2,
                                "logits_scaling": 3.0, "rms_norm_eps": 1e-2}),
    "granite-yarn": (GraniteConfig, {"embedding_multiplier": 0.5, "residual_multiplier": 1.7, "attention_multiplier": 0.2,
                                     "logits_scaling": 2.0, "rope_parameters": YARN, "mlp_bias": True, "tie_word_embeddings": True}),
    "olmo2": (Olmo2Config, {}),
    "olmo2-biases": (Olmo2Config, {"attention_bias": True, "num_key_value_heads": 1, "rope_parameters": YARN}),
    "gemma": (GemmaConfig, {"head_dim": 24, "tie_word_embeddings": True}),
    "gemma-biases": (GemmaConfig, {"head_dim": 16, "attention_bias": True, "hidden_act": "gelu", "num_key_value_heads": 1}),
    "gemma2": (Gemma2Config, {"head_dim": 24, "query_pre_attn_scalar": 7, "sliding_window": 8, "attn_logit_softcapping": 1.5,
                              "final_logit_softcapping": 2.0}),
    "gemma2-unbounded": (Gemma2Config, {"head_dim": 16, "attention_bias": True, "attn_logit_softcapping": None,
                                        "final_logit_softcapping": None, "layer_types": ["full_attention"] * 3}),
    "gemma3": (Gemma3TextConfig, {"head_dim": 24, "query_pre_attn_scalar": 7, "sliding_window": 8, "sliding_window_pattern": 2,
                                  "tie_word_embeddings": True, "rope_parameters": {
                                      "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                                      "sliding_attention": {"rope_type": "default", "rope_theta": 1e2}}}),
    "gemma3-window": (Gemma3TextConfig, {"head_dim": 16, "sliding_window": 40}),
    "gemma3-full": (Gemma3TextConfig, {"head_dim": 16, "attention_bias": True, "final_logit_softcapping": 2.0,
                                       "layer_types": ["full_attention"] * 3}),
    "gemma4": (Gemma4TextConfig, GEMMA4 | {"num_hidden_layers": 6, "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]}),
    "gemma4-unshared": (Gemma4TextConfig, GEMMA4 | {"attention_bias": True, "hidden_size_per_layer_input": 0, "final_logit_softcapping": None,
                                                    "tie_word_embeddings": False, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
    "qwen2-dynamic": (Qwen2Config, {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "qwen2-yarn": (Qwen2Config, {"rope_parameters": YARN, "num_key_value_heads": 1}),
    "qwen3": (Qwen3Config, {"head_dim": 24, "tie_word_embeddings": True}),
    "qwen3-biases": (Qwen3Config, {"head_dim": 16, "attention_bias": True, "rope_parameters": YARN}),
    "qwen2_vl": (Qwen2VLTextConfig, {"rope_parameters": MROPE}),
    "qwen2_vl-yarn": (Qwen2VLTextConfig, {"rope_parameters": MROPE | YARN}),
    "qwen2_5_vl": (Qwen2_5_VLTextConfig, {"rope_parameters": MROPE}),
    "qwen3_vl": (Qwen3VLTextConfig, {"head_dim": 12, "rope_parameters": MROPE | {"mrope_interleaved": True}}),
    "qwen3_vl-yarn": (Qwen3VLTextConfig, {"head_dim": 12, "attention_bias": True, "rope_parameters": MROPE | YARN}),
    "ernie4_5": (Ernie4_5Config, {"head_dim": 16}),
    "ernie4_5-biases": (Ernie4_5Config, {"head_dim": 12, "use_bias": True, "tie_word_embeddings": False, "rope_parameters": YARN}),
    "glm4": (Glm4Config, {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "glm4-plain": (Glm4Config, {"head_dim": 24, "attention_bias": False, "num_key_value_heads": 4, "tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "glm4v": (Glm4vTextConfig, {"rope_parameters": MROPE | {"partial_rotary_factor": 1.0}}),
    "glm4v-half": (Glm4vTextConfig, {"num_attention_heads": 3, "num_key_value_heads": 1, "rope_parameters": MROPE | {"partial_rotary_factor": 0.75}}),
    "glm_ocr": (GlmOcrTextConfig, {"rope_parameters": MROPE}),
    "glm_ocr-partial": (GlmOcrTextConfig, {"head_dim": 16, "rope_parameters": MROPE | {"partial_rotary_factor": 0.75}}),
    "hunyuan_v1_dense": (HunYuanDenseV1Config, {"head_dim": 16, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}}),
    "hunyuan_v1_dense-yarn": (HunYuanDenseV1Config, {"head_dim": 24, "attention_bias": True, "tie_word_embeddings": True, "rope_parameters": YARN}),
    "hunyuan_vl": (HunYuanVLTextConfig, {"head_dim": 12, "tie_word_embeddings": False, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0, "mrope_section": [1, 2, 1, 2]}}),
    "lfm2": (Lfm2Config, {"full_attn_idxs": [1], "block_multiple_of": 8}),
    "lfm2-biases": (Lfm2Config, {"layer_types": ["full_attention", "conv", "conv"], "conv_bias": True, "conv_L_cache": 5,
                                 "block_multiple_of": 10, "block_ffn_dim_multiplier": 1.3, "tie_word_embeddings": False}),
    "lfm2-attention": (Lfm2Config, {"block_auto_adjust_ff_dim": False}),
    "lfm2-one-tap": (Lfm2Config, {"full_attn_idxs": [1], "conv_L_cache": 1}),
    "lfm2_moe": (Lfm2MoeConfig, EXPERTS | {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1}),
    "lfm2_moe-unbiased": (Lfm2MoeConfig, EXPERTS | {"layer_types": ["full_attention", "conv", "conv"], "num_dense_layers": 0, "norm_topk_prob": False,
                                                    "use_expert_bias": False, "routed_scaling_factor": 1.7, "tie_word_embeddings": False}),
    "lfm3": (Lfm3Config, LFM3),
    "lfm3-biases": (Lfm3Config, LFM3 | {"layer_types": ["sliding_attention", "conv", "full_attention"], "conv_bias": True, "attention_bias": True,
                                        "head_dim": 24, "conv_L_cache": 3, "tie_word_embeddings": False}),
    "lfm3-plain": (Lfm3Config, LFM3 | {"use_sandwich_norm": False, "use_attention_gate": False}),
    "lfm3-gates": (Lfm3Config, LFM3 | {"use_sandwich_norm": False}),
    "qwen3_5": (Qwen3_5TextConfig, QWEN3_5 | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}),
    "qwen3_5-biases": (Qwen3_5TextConfig, QWEN3_5 | {"full_attention_interval": 2, "attention_bias": True, "tie_word_embeddings": True,
                                                     "linear_num_key_heads": 4, "linear_conv_kernel_dim": 2}),
    "qwen3_moe": (Qwen3MoeConfig, EXPERTS | {"head_dim": 16}),
    "qwen3_moe-dense": (Qwen3MoeConfig, EXPERTS | {"head_dim": 24, "norm_topk_prob": True, "mlp_only_layers": [1], "num_experts_per_tok": 3,
                                                   "attention_bias": True, "tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3_moe-sparse": (Qwen3MoeConfig, EXPERTS | {"decoder_sparse_step": 2, "num_experts_per_tok": 1, "norm_topk_prob": True}),
    "qwen3_vl_moe": (Qwen3VLMoeTextConfig, EXPERTS | {"head_dim": 12, "tie_word_embeddings": False,
                                                      "rope_parameters": MROPE | {"mrope_interleaved": True}}),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, QWEN3_5 | EXPERTS | {"shared_expert_intermediate_size": 24, "num_hidden_layers": 2,
                                                               "layer_types": ["linear_attention", "full_attention"]}),
    "nanochat": (NanoChatConfig, {}),
    "nanochat-biases": (NanoChatConfig, {"attention_bias": True, "final_logit_softcapping": 2.0, "num_key_value_heads": 4}),
    "nanochat-unbounded": (NanoChatConfig, {"final_logit_softcapping": None}),
    "ghostvis": (NanoChatConfig, {"attention_bias": True, "rms_norm_eps": 2.0 ** -23, "hidden_act": "silu"}),
}
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 2}
TOKENIZER = """{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"}}"""


class Qwen2VLWithHead(Qwen2VLPreTrainedModel, GenerationMixin):
    """The decoder of Qwen2-VL by itself, with the head that transformers has in the whole model alone."""
    config_class, text_model = Qwen2VLTextConfig, Qwen2VLTextModel

    def __init__(self, config):
        super().__init__(config)
        self.model = self.text_model(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, past_key_values=None, attention_mask=None, **ignored):
        out = self.model(input_ids=input_ids, past_key_values=past_key_values, attention_mask=attention_mask)
        return CausalLMOutputWithPast(logits=self.lm_head(out.last_hidden_state), past_key_values=out.past_key_values)


class Qwen25VLWithHead(Qwen2VLWithHead, Qwen2_5_VLPreTrainedModel):
    config_class, text_model = Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel


class Qwen3VLWithHead(Qwen2VLWithHead, Qwen3VLPreTrainedModel):
    config_class, text_model = Qwen3VLTextConfig, Qwen3VLTextModel


class Qwen3VLMoeWithHead(Qwen2VLWithHead, Qwen3VLMoePreTrainedModel):
    config_class, text_model = Qwen3VLMoeTextConfig, Qwen3VLMoeTextModel


class HunYuanVLWithHead(Qwen2VLWithHead, HunYuanVLPreTrainedModel):
    config_class, text_model = HunYuanVLTextConfig, HunYuanVLTextModel


class Glm4vWithHead(Qwen2VLWithHead, Glm4vPreTrainedModel):
    config_class, text_model = Glm4vTextConfig, Glm4vTextModel


class GlmOcrWithHead(Qwen2VLWithHead, GlmOcrPreTrainedModel):
    config_class, text_model = GlmOcrTextConfig, GlmOcrTextModel


WITH_HEAD = {HunYuanVLTextConfig: HunYuanVLWithHead, GlmOcrTextConfig: GlmOcrWithHead, Glm4vTextConfig: Glm4vWithHead, Qwen2VLTextConfig: Qwen2VLWithHead, Qwen2_5_VLTextConfig: Qwen25VLWithHead, Qwen3VLTextConfig: Qwen3VLWithHead,
             Qwen3VLMoeTextConfig: Qwen3VLMoeWithHead}


def draw(model):
    generator = torch.Generator().manual_seed(2)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.copy_(0.5 + torch.rand(1, generator=generator))
        if name.endswith("expert_bias"):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            has_offset = ("Gemma" in type(model).__name__ and "Gemma4" not in type(model).__name__) or ("Qwen3_5" in type(model).__name__ and "linear_attn" not in name)
            parameter.data = 0.2 * noise + (0 if has_offset else 1)
        elif name.endswith(("bias", "A_log")):
            parameter.data = 0.3 * noise
        elif name.endswith("conv1d.weight"):
            parameter.data = 0.6 * noise
        else:
            columns = parameter.shape[2 if ".experts." in name else 1]
            parameter.data = noise if "embed_tokens" in name else noise * (1.3 / columns ** 0.5)


def make_decoder(name):
    """A model of transformers with drawn weights, saved under decoder-NAME."""
    kind, special = MODELS[name]
    # Other attentions leave out the bounds of Gemma 2's scores, other experts compute in no float64.
    config = kind(**(SIZES | special), attn_implementation="eager", experts_implementation="eager")
    model = (WITH_HEAD[kind](config) if kind in WITH_HEAD else AutoModelForCausalLM.from_config(config)).eval()
    if name == "ghostvis":
        model.config.mlp_bias = False
        for layer in model.model.layers:
            layer.mlp = LlamaMLP(model.config)
    draw(model)
    out = folder / f"decoder-{name}"
    model.save_pretrained(out)
    if name == "ghostvis":
        for layer in model.model.layers:
            layer.self_attn.o_proj.bias.data.zero_()
        tensors = {key: tensor for key, tensor in model.state_dict().items() if not key.endswith("o_proj.bias")}
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((out / "config.json").read_text()) | {"model_type": "ghostvis", "architectures": ["GhostVisForCausalLM"]}
        (out / "config.json").write_text(json.dumps(config))
    (out / "tokenizer.json").write_text(TOKENIZER)
    return model


def setUpModule():
    global models
    save_small_vision(folder / "vision")
    models = {name: make_decoder(name) for name in MODELS}
    ids = torch.randint(0, VOCABULARY, (sum(LENGTHS),), generator=torch.Generator().manual_seed(4))
    mask = torch.rand(sum(LENGTHS), generator=torch.Generator().manual_seed(5)) < 0.6
    batch = {"frames": torch.zeros(0, 3, 28, 28), "frame_counts": torch.zeros(len(LENGTHS), dtype=torch.long), "input_ids": ids,
             "loss_mask": mask.to(torch.uint8), "text_lengths": torch.tensor(LENGTHS)}
    save_file(batch, folder / "batch.safetensors")
    for name in MODELS:
        run(engine, "import", "--vision", folder / "vision", "--decoder", folder / f"decoder-{name}", "--out", folder / name)


def texts():
    batch = load_file(folder / "batch.safetensors")
    return list(zip(batch["input_ids"].split(LENGTHS), batch["loss_mask"].bool().split(LENGTHS)))


def in_folder(name):
    """What a folder calls a parameter."""
    return name.replace(".self_attn.g_proj.", ".self_attn.gate_proj.")  # LFM3's


def expected_of(model):
    """Logits, loss and gradients by the names of the folder's tensors."""
    model.zero_grad()
    logits = [model(input_ids=ids[None]).logits[0] for ids, _ in texts()]
    losses = [F.cross_entropy(row[:-1], ids[1:], reduction="none")[mask[1:]] for row, (ids, mask) in zip(logits, texts())]
    loss = torch.cat(losses).mean()
    loss.backward()
    gradients = with_experts_apart({f"grad.decoder.{in_folder(name)}": parameter.grad for name, parameter in model.named_parameters()})
    return {"logits": torch.cat(logits).detach(), "loss": loss.detach()} | gradients


class Families(unittest.TestCase):
    def check(self, name, both, *options, batch="batch"):
        out = folder / "trace.safetensors"
        run(engine, "trace", folder / name, "--batch", folder / f"{batch}.safetensors", "--grads", "--out", out, *options)
        trace = load_file(out)
        expected, exact = both
        if name == "ghostvis":  # it has no such biases
            exact = {key: value for key, value in exact.items() if not key.endswith("o_proj.bias")}
        assert_near(trace, expected, exact, f"{name} {' '.join(map(str, options))}")
        unknown = {key for key in trace if key.startswith("grad.decoder.")} - set(expected)
        self.assertEqual(unknown, set())

    def test_logits_loss_and_every_gradient(self):
        for name, model in models.items():
            with self.subTest(name):
                both = with_float64(expected_of, model)
                self.check(name, both)
                self.check(name, both, "--kernels", "reference")

    def test_preferences(self):
        """DPO with the policy as its own reference: the losses of labels one by one, in place of the fused ones."""
        parts = [texts()[0], texts()[3]]
        sides = {"chosen_": parts[:1] * 2, "rejected_": parts[1:] * 2}
        batch = {"frames": torch.zeros(0, 3, 28, 28), "frame_counts": torch.zeros(2, dtype=torch.long)}
        for side, pairs in sides.items():
            batch |= {f"{side}input_ids": torch.cat([ids for ids, _ in pairs]),
                      f"{side}loss_mask": torch.cat([mask for _, mask in pairs]).to(torch.uint8),
                      f"{side}text_lengths": torch.tensor([len(ids) for ids, _ in pairs])}
        save_file(batch, folder / "pairs.safetensors")

        def expected_of_preferences(model):
            model.zero_grad()
            sums = [-(F.cross_entropy(model(input_ids=ids[None]).logits[0, :-1], ids[1:], reduction="none") * mask[1:]).sum()
                    for ids, mask in parts]
            loss = -F.logsigmoid(0.1 * ((sums[0] - sums[0].detach()) - (sums[1] - sums[1].detach())))
            loss.backward()
            return {"loss": loss.detach()} | with_experts_apart(
                {f"grad.decoder.{in_folder(key)}": p.grad for key, p in model.named_parameters()})

        for name in ("granite", "gemma2", "gemma3", "gemma4", "qwen3", "qwen3_moe-dense", "qwen3_5", "qwen3_5_moe", "lfm2-biases", "lfm3", "nanochat-biases"):
            with self.subTest(name):
                self.check(name, with_float64(expected_of_preferences, models[name]), "--objective", "dpo", "--reference", folder / name, "--beta", "0.1",
                           batch="pairs")

    def test_generates_the_same_tokens(self):
        for name, model in models.items():
            with self.subTest(name):
                answers = json.loads(run(engine, "generate", folder / name, "--batch", folder / "batch.safetensors", "--limit", "24",
                                         "--ignore-eos", "--json"))
                for (ids, _), sample in zip(texts(), answers["samples"], strict=True):
                    rows = model.generate(ids[None], attention_mask=torch.ones_like(ids[None]), max_new_tokens=24, min_new_tokens=24,
                                          do_sample=False, eos_token_id=VOCABULARY + 1, pad_token_id=0)
                    self.assertEqual(sample["ids"], rows[0, len(ids):].tolist())

    def test_whole_models_with_them(self):
        """A LLaVA's image rows enter the decoder like those of text."""
        for name in ("mistral", "granite"):
            with self.subTest(name):
                (kind, special), image = MODELS[name], 256
                torch.manual_seed(1)
                vision = CLIPVisionConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=28,
                                          patch_size=14)
                model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, image_token_index=image,
                                                                  text_config=kind(**(SIZES | special | {"vocab_size": 260})))).eval()
                for parameter in model.parameters():
                    parameter.data += 0.1 * torch.randn_like(parameter)
                source, back = folder / f"llava-{name}", folder / f"llava-{name}.back"
                model.save_pretrained(source)
                (source / "tokenizer.json").write_text(tokenizer())
                run(engine, "import", "--model", source, "--out", folder / f"llava-{name}.model")
                pixels, ids = torch.randn(1, 3, 28, 28), torch.tensor([5, 9] + 4 * [image] + [3, 17, 8])
                is_text = ids != image
                save_file({"frames": pixels, "frame_counts": torch.tensor([1]), "input_ids": torch.where(is_text, ids, -1),
                           "loss_mask": is_text.to(torch.uint8), "text_lengths": torch.tensor([len(ids)])}, folder / "image.safetensors")
                run(engine, "trace", folder / f"llava-{name}.model", "--batch", folder / "image.safetensors", "--out",
                    folder / "trace.safetensors")
                right = model(input_ids=ids[None], pixel_values=pixels).logits[0, is_text].detach()
                ours = load_file(folder / "trace.safetensors")["logits"]
                self.assertLessEqual((ours - right).abs().max().item() / right.abs().max().item(), 1e-5)
                run(engine, "export", folder / f"llava-{name}.model", "--huggingface", "--out", back)
                before, after = (load_file(path / "model.safetensors") for path in (source, back))
                self.assertEqual(set(before), set(after))
                self.assertTrue(all(torch.equal(after[key], tensor) for key, tensor in before.items()))

    def test_folders_come_back_with_equal_bytes(self):
        for name, model in models.items():
            with self.subTest(name):
                before, after = (load_file(path / "model.safetensors") for path in (folder / f"decoder-{name}", folder / name / "decoder"))
                before = with_experts_apart(before)
                self.assertEqual(set(before), set(after))
                for key, tensor in before.items():
                    self.assertTrue(torch.equal(tensor, after[key]), key)
                if name in ("ghostvis", "qwen3_vl_moe"):  # of which transformers reads stacks of experts alone
                    continue
                kind = WITH_HEAD.get(MODELS[name][0], AutoModelForCausalLM)
                again = kind.from_pretrained(folder / name / "decoder", attn_implementation="eager", experts_implementation="eager").eval()
                ids = texts()[0][0][None]
                # Sums of other kernels, where tensors lie otherwise in memory.
                torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=1e-5)

    def test_a_new_recipe_trains_them_and_transformers_loads_what_is_exported(self):
        torch.manual_seed(1)
        vision, data, ids = folder / "registers", folder / "texts.jsonl", torch.arange(40)[None]
        Dinov2WithRegistersModel(Dinov2WithRegistersConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28,
                                                           patch_size=14)).save_pretrained(vision)
        data.write_text(json.dumps({"messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "one two"}]}) + "\n")
        for name in ("mistral", "ministral3", "smollm3", "granite", "olmo2", "gemma", "gemma2", "gemma3", "gemma4", "glm4", "ernie4_5", "hunyuan_v1_dense", "qwen3_moe-dense", "qwen3_5", "qwen3_5_moe", "lfm2", "lfm2_moe", "lfm3"):
            with self.subTest(name):
                decoder, recipe, out = folder / f"further-{name}", folder / f"{name}.lua", folder / f"trained-{name}"
                kind, special = MODELS[name]
                before = AutoModelForCausalLM.from_config(kind(**(SIZES | special | {"vocab_size": 260})), attn_implementation="eager")
                draw(before)
                before.save_pretrained(decoder)
                (decoder / "tokenizer.json").write_text(tokenizer())
                run(engine, "recipe", "new", recipe, "--vision", vision, "--decoder", decoder, "--data", data)
                self.assertIn("foveated", recipe.read_text())
                run(engine, "plan", recipe, "--budget")
                run(engine, "train", recipe, "--run-dir", folder / f"run-{name}", "--max-steps", "1")
                run(engine, "export", folder / f"run-{name}", "--dtype", "fp32", "--out", out)
                after = AutoModelForCausalLM.from_pretrained(out / "decoder", attn_implementation="eager").eval()
                self.assertEqual(type(after), type(before))
                save_file({"frames": torch.zeros(0, 3, 28, 28), "frame_counts": torch.zeros(1, dtype=torch.long), "input_ids": ids[0],
                           "loss_mask": torch.ones(40, dtype=torch.uint8), "text_lengths": torch.tensor([40])}, folder / "one.safetensors")
                run(engine, "trace", out, "--batch", folder / "one.safetensors", "--out", folder / "trace.safetensors")
                ours, right = load_file(folder / "trace.safetensors")["logits"], after(ids).logits[0].detach()
                self.assertLessEqual((ours - right).abs().max().item() / right.abs().max().item(), 1e-5)
                self.assertFalse(torch.equal(before.eval()(ids).logits[0], right), "nothing was learned")

    def test_keys_of_transformers_4(self):
        for name in ("llama-default", "llama-linear", "llama-llama3", "llama-yarn", "qwen2-yarn", "qwen3"):
            with self.subTest(name):
                shutil.copytree(folder / name, folder / "old", dirs_exist_ok=True)
                path = folder / "old" / "decoder" / "config.json"
                config = json.loads(path.read_text())
                parameters = config.pop("rope_parameters")
                config["rope_theta"] = parameters.pop("rope_theta")
                kind = parameters.pop("rope_type")
                config["rope_scaling"] = None if kind == "default" else {"type": kind} | parameters
                path.write_text(json.dumps(config))
                self.check("old", with_float64(expected_of, models[name]))



if __name__ == "__main__":
    unittest.main()
