#include "model/decoder/llama/config.h"

#include <cmath>
#include <map>

namespace fvlm::llama {
namespace {

DecoderConfig llama_defaults(ConfigReader& config) {
  DecoderConfig out;
  out.vocab_size = 32000;
  out.hidden_size = 4096;
  out.intermediate_size = 11008;
  out.num_hidden_layers = out.num_attention_heads = 32;
  out.max_position_embeddings = 2048;
  out.rms_norm_eps = 1e-6;
  out.eos_token_id = {2};
  out.qkv_bias = out.out_bias = config.flag("attention_bias", false);
  out.mlp_bias = config.flag("mlp_bias", false);
  return out;
}

// Mistral's linears have no biases, whatever config.json says.
DecoderConfig mistral_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.intermediate_size = 14336;
  out.num_key_value_heads = 8;
  out.max_position_embeddings = int64_t{1} << 17;
  out.qkv_bias = out.out_bias = out.mlp_bias = false;
  return out;
}

DecoderConfig ministral3_defaults(ConfigReader& config) {
  DecoderConfig out = mistral_defaults(config);
  out.vocab_size = int64_t{1} << 17;
  out.num_hidden_layers = 34;
  out.head_dim = 128;
  out.max_position_embeddings = int64_t{1} << 18;
  out.rms_norm_eps = 1e-5;
  return out;
}

DecoderConfig smollm3_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.vocab_size = 128256;
  out.hidden_size = 2048;
  out.num_hidden_layers = 36;
  out.num_attention_heads = 16;
  out.num_key_value_heads = 4;
  out.max_position_embeddings = int64_t{1} << 15;
  out.rope_theta = 2e6;
  out.eos_token_id = {128001};
  out.tie_word_embeddings = true;
  config.refuse_unless(!config.flag("use_sliding_window", false) || !config.has("sliding_window"), "sliding_window",
                       "every layer has full attention; set it to null if no text is longer than the window");
  return out;
}

DecoderConfig granite_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  constexpr double least = 1e-6, most = 1e6;
  out.embedding_multiplier = config.number("embedding_multiplier", 1, least, most);
  out.residual_multiplier = config.number("residual_multiplier", 1, least, most);
  out.attention_multiplier = config.number("attention_multiplier", 1, least, most);
  out.logits_scaling = config.number("logits_scaling", 1, least, most);
  return out;
}

DecoderConfig olmo2_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.vocab_size = 50304;
  out.rms_norm_eps = 1e-5;
  out.eos_token_id = {50279};
  out.mlp_bias = false;
  out.qk_row_norm = out.post_norms = true;
  out.pre_norms = false;
  return out;
}

DecoderConfig gemma_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.vocab_size = 256000;
  out.hidden_size = 3072;
  out.intermediate_size = 24576;
  out.num_hidden_layers = 28;
  out.num_attention_heads = 16;
  out.head_dim = 256;
  out.max_position_embeddings = 8192;
  out.eos_token_id = {1};
  out.tie_word_embeddings = true;
  out.mlp_bias = false;
  out.unit_offset = out.gelu_gate = out.scaled_tokens = true;
  return out;
}

// What Gemma 2 and Gemma 3 share. The bounds of logits and of scores that they have where a key is missing; 0: none.
DecoderConfig later_gemma_defaults(ConfigReader& config, double logit_cap, double score_cap) {
  DecoderConfig out = gemma_defaults(config);
  out.hidden_size = 2304;
  out.intermediate_size = 9216;
  out.num_hidden_layers = 26;
  out.num_attention_heads = 8;
  out.num_key_value_heads = 4;
  out.post_norms = true;
  out.attention_multiplier = 1 / std::sqrt(static_cast<double>(config.whole(query_scale_key, 256, 1)));
  const auto cap = [&](const char* key, double otherwise) {
    if (config.has_null(key) || (otherwise == 0 && !config.has(key))) return 0.0;
    return config.number(key, otherwise, 1e-3, 1e6);
  };
  out.final_logit_softcapping = cap(cap_key, logit_cap);
  out.attn_logit_softcapping = cap(score_cap_key, score_cap);
  return out;
}

DecoderConfig gemma2_defaults(ConfigReader& config) {
  return later_gemma_defaults(config, 30, 50);
}

DecoderConfig gemma3_defaults(ConfigReader& config) {
  config.refuse_unless(!config.has(score_cap_key), score_cap_key, "this model's scores have no bound");
  DecoderConfig out = later_gemma_defaults(config, 0, 0);
  out.vocab_size = 262208;
  out.max_position_embeddings = int64_t{1} << 17;
  out.rope_theta = 1e6;
  out.qk_norm = true;
  return out;
}

// `layers`: how many there are where config.json does not say it; `unwindowed`: how many of them have no window, where
// there is one.
DecoderConfig qwen_defaults(ConfigReader& config, int64_t layers = 32, int64_t unwindowed = 28) {
  DecoderConfig out;
  out.vocab_size = 151936;
  out.hidden_size = 4096;
  out.intermediate_size = 22016;
  out.num_hidden_layers = layers;
  out.num_attention_heads = out.num_key_value_heads = 32;
  out.max_position_embeddings = 32768;
  out.rms_norm_eps = 1e-6;
  // Without layer_types, layers from max_window_layers on have the window.
  const bool has_window =
      config.flag("use_sliding_window", false) && !config.has_null("sliding_window") && !config.has("layer_types") &&
      config.whole("max_window_layers", unwindowed, 0) < config.whole("num_hidden_layers", layers, 1);
  config.refuse_unless(!has_window, "use_sliding_window",
                       "every layer has full attention; set it to false if no text is longer than the window");
  return out;
}

DecoderConfig qwen2_defaults(ConfigReader& config) {
  DecoderConfig out = qwen_defaults(config);
  out.qkv_bias = true;
  return out;
}

// The decoder of Qwen2-VL and Qwen2.5-VL.
DecoderConfig qwen2_vl_defaults(ConfigReader& config) {
  DecoderConfig out = qwen_defaults(config, 80, 80);
  out.qkv_bias = true;
  out.vocab_size = 152064;
  out.hidden_size = 8192;
  out.intermediate_size = 29568;
  out.num_attention_heads = 64;
  out.num_key_value_heads = 8;
  out.rms_norm_eps = 1e-5;
  out.rope_theta = 1e6;
  out.mrope_section = {16, 24, 24};
  out.eos_token_id = {151645};
  return out;
}

DecoderConfig qwen3_defaults(ConfigReader& config) {
  DecoderConfig out = qwen_defaults(config);
  out.head_dim = 128;
  out.qk_norm = true;
  out.qkv_bias = out.out_bias = config.flag("attention_bias", false);
  return out;
}

DecoderConfig qwen3_vl_defaults(ConfigReader& config) {
  DecoderConfig out = qwen3_defaults(config);
  out.max_position_embeddings = 128000;
  out.rope_theta = 5e5;
  out.mrope_section = {24, 20, 20};
  out.mrope_interleaved = true;
  return out;
}

// Where a config wants a window, all layers have it. The experts are read with the layers.
DecoderConfig qwen3_moe_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.vocab_size = 151936;
  out.hidden_size = 2048;
  out.intermediate_size = 6144;
  out.num_hidden_layers = 24;
  out.num_key_value_heads = 4;
  out.max_position_embeddings = 32768;
  out.eos_token_id = {};
  out.mlp_bias = false;
  out.qk_norm = true;
  config.refuse_unless(!config.flag("use_sliding_window", false) || config.has_null(window_key), "use_sliding_window",
                       "every layer has full attention; set it to false if no text is longer than the window");
  return out;
}

DecoderConfig qwen3_vl_moe_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.vocab_size = 151936;
  out.hidden_size = 2048;
  out.intermediate_size = 5632;
  out.num_hidden_layers = 24;
  out.num_attention_heads = out.num_key_value_heads = 16;
  out.max_position_embeddings = 128000;
  out.rope_theta = 5e5;
  out.mrope_section = {24, 20, 20};
  out.eos_token_id = {};
  out.mlp_bias = false;
  out.qk_norm = out.mrope_interleaved = out.tie_word_embeddings = true;
  return out;
}

DecoderConfig qwen3_5_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.vocab_size = 248320;
  out.intermediate_size = 12288;
  out.num_attention_heads = 16;
  out.num_key_value_heads = 4;
  out.head_dim = 256;
  out.max_position_embeddings = 32768;
  out.eos_token_id = {};
  out.mlp_bias = false;
  out.qk_norm = out.unit_offset = out.gated_attention = out.mrope_interleaved = out.may_rotate_part = true;
  out.partial_rotary_factor = 0.25;
  out.mrope_section = {11, 11, 10};
  return out;
}

DecoderConfig qwen3_5_moe_defaults(ConfigReader& config) {
  DecoderConfig out = qwen3_5_defaults(config);
  out.hidden_size = 2048;
  out.num_hidden_layers = 40;
  out.num_key_value_heads = 2;
  return out;
}

// Ernie 4.5's with Qwen2-VL's M-RoPE.
DecoderConfig paddleocr_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.vocab_size = 103424;
  out.hidden_size = 1024;
  out.intermediate_size = 3072;
  out.num_hidden_layers = 18;
  out.num_attention_heads = 16;
  out.num_key_value_heads = 2;
  out.head_dim = 128;
  out.max_position_embeddings = int64_t{1} << 17;
  out.rms_norm_eps = 1e-5;
  out.rope_theta = 5e5;
  out.mrope_section = {16, 24, 24};
  out.tie_word_embeddings = true;
  out.qkv_bias = out.out_bias = out.mlp_bias = config.flag(use_bias_key, false);
  return out;
}

DecoderConfig ernie_defaults(ConfigReader& config) {
  DecoderConfig out = paddleocr_defaults(config);
  out.num_hidden_layers = 18;
  out.mrope_section.clear();
  out.adjacent_pairs = true;
  return out;
}

// Whose layers have four norms.
DecoderConfig glm4_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.vocab_size = 151552;
  out.intermediate_size = 13696;
  out.num_hidden_layers = 40;
  out.num_key_value_heads = 2;
  out.head_dim = 128;
  out.max_position_embeddings = int64_t{1} << 17;
  out.rms_norm_eps = 1.5625e-07;
  out.partial_rotary_factor = 0.5;
  out.eos_token_id = {151329, 151336, 151338};
  out.qkv_bias = config.flag("attention_bias", true);
  out.out_bias = out.mlp_bias = false;
  out.post_norms = out.fused_gate = out.adjacent_pairs = out.may_rotate_part = true;
  return out;
}

// GLM-4's with M-RoPE.
DecoderConfig glm4v_defaults(ConfigReader& config) {
  DecoderConfig out = glm4_defaults(config);
  out.max_position_embeddings = int64_t{1} << 15;
  out.head_dim = 0;
  out.rms_norm_eps = 1e-5;
  out.partial_rotary_factor = 1;
  out.mrope_section = {8, 12, 12};
  out.eos_token_id = {};
  out.qkv_bias = true;
  return out;
}

DecoderConfig glm_ocr_defaults(ConfigReader& config) {
  DecoderConfig out = glm4v_defaults(config);
  out.vocab_size = 59392;
  out.hidden_size = 1024;
  out.intermediate_size = 4096;
  out.num_hidden_layers = out.num_attention_heads = 16;
  out.num_key_value_heads = 8;
  out.max_position_embeddings = int64_t{1} << 17;
  out.qkv_bias = false;
  return out;
}

DecoderConfig hunyuan_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.vocab_size = 290943;
  out.rms_norm_eps = 1e-5;
  out.mlp_bias = false;
  out.qk_norm = out.norms_rotated = true;
  return out;
}

// With XD-RoPE.
DecoderConfig hunyuan_vl_defaults(ConfigReader& config) {
  DecoderConfig out = hunyuan_defaults(config);
  out.tie_word_embeddings = true;
  out.mrope_section = {16, 16, 16, 16};
  return out;
}

DecoderConfig nanochat_defaults(ConfigReader& config) {
  DecoderConfig out;
  out.vocab_size = 50304;
  out.hidden_size = 768;
  out.intermediate_size = 8192;
  out.num_hidden_layers = 12;
  out.num_attention_heads = 6;
  out.max_position_embeddings = 2048;
  out.rms_norm_eps = 1e-6;
  out.eos_token_id = {1};
  out.norm_weights = out.gated_mlp = false;
  out.embedding_norm = out.qk_norm = out.rope_reversed = true;
  out.qkv_bias = out.out_bias = config.flag("attention_bias", false);
  out.final_logit_softcapping = config.has_null(cap_key) ? 0 : config.number(cap_key, 15, 1e-3, 1e6);
  return out;
}

// nanochat with Llama's MLP.
DecoderConfig ghostvis_defaults(ConfigReader& config) {
  DecoderConfig out = nanochat_defaults(config);
  out.rms_norm_eps = 0x1p-23;
  out.gated_mlp = true;
  out.qkv_bias = config.flag("attention_bias", true);
  out.out_bias = false;
  return out;
}

DecoderConfig lfm2_defaults(ConfigReader&) {
  DecoderConfig out;
  out.vocab_size = 65536;
  out.hidden_size = 2560;
  out.intermediate_size = 12288;
  out.num_hidden_layers = out.num_attention_heads = 32;
  out.num_key_value_heads = 8;
  out.max_position_embeddings = 128000;
  out.rms_norm_eps = 1e-5;
  out.rope_theta = 1e6;
  out.eos_token_id = {2};
  out.tie_word_embeddings = out.qk_norm = out.operator_names = true;
  return out;
}

DecoderConfig lfm2_moe_defaults(ConfigReader& config) {
  DecoderConfig out = lfm2_defaults(config);
  out.hidden_size = 2048;
  out.intermediate_size = 7168;
  return out;
}

// Most of whose layers have convolutions, others a window.
DecoderConfig lfm3_defaults(ConfigReader& config) {
  DecoderConfig out = lfm2_defaults(config);
  out.vocab_size = 128000;
  out.hidden_size = 2048;
  out.intermediate_size = 7680;
  out.num_hidden_layers = 24;
  out.num_attention_heads = 16;
  out.num_key_value_heads = 4;
  out.head_dim = 128;
  out.rope_scaling.rotated_part = 0.5;
  out.eos_token_id = {124900};
  out.qkv_bias = out.out_bias = config.flag("attention_bias", false);
  out.head_gates = config.flag(head_gates_key, true);
  out.post_norms = config.flag(post_norms_key, true);
  return out;
}

} // namespace

TensorNames names_of(const DecoderConfig& config) {
  TensorNames names;
  if (config.operator_names) {
    names.attention_norm = "operator_norm", names.mlp_norm = "ffn_norm", names.final_norm = "embedding_norm";
    names.gate = "feed_forward.w1", names.up = "feed_forward.w3", names.down = "feed_forward.w2";
    if (config.model_type == lfm3) {
      names.attention_post_norm = "post_operator_norm", names.mlp_post_norm = "post_ffn_norm";
      return names;
    }
    names.q_norm = "self_attn.q_layernorm", names.k_norm = "self_attn.k_layernorm", names.out = "self_attn.out_proj";
    names.router = "feed_forward.gate", names.experts = "feed_forward.experts.";
    names.expert_gate = "w1", names.expert_up = "w3", names.expert_down = "w2";
    return names;
  }
  if (config.fused_gate) {
    names.up = "mlp.gate_up_proj";
    names.attention_post_norm = "post_self_attn_layernorm", names.mlp_post_norm = "post_mlp_layernorm";
  } else if (config.post_norms) {
    names.mlp_norm = "pre_feedforward_layernorm";
  }
  if (config.norms_rotated) names.q_norm = "self_attn.query_layernorm", names.k_norm = "self_attn.key_layernorm";
  if (!config.gated_mlp) names.up = "mlp.fc1", names.down = "mlp.fc2";
  return names;
}

DecoderConfig defaults(ConfigReader& config, const std::string& model_type) {
  static const std::map<std::string, DecoderConfig (*)(ConfigReader&)> all{{"llama", llama_defaults},
                                                                           {mistral, mistral_defaults},
                                                                           {ministral3, ministral3_defaults},
                                                                           {"smollm3", smollm3_defaults},
                                                                           {"granite", granite_defaults},
                                                                           {"olmo2", olmo2_defaults},
                                                                           {"qwen2", qwen2_defaults},
                                                                           {"qwen3", qwen3_defaults},
                                                                           {"nanochat", nanochat_defaults},
                                                                           {"ghostvis", ghostvis_defaults},
                                                                           {"gemma", gemma_defaults},
                                                                           {gemma2, gemma2_defaults},
                                                                           {gemma3, gemma3_defaults},
                                                                           {qwen2_vl, qwen2_vl_defaults},
                                                                           {qwen2_5_vl, qwen2_vl_defaults},
                                                                           {qwen3_vl, qwen3_vl_defaults},
                                                                           {lfm2, lfm2_defaults},
                                                                           {lfm2_moe, lfm2_moe_defaults},
                                                                           {lfm3, lfm3_defaults},
                                                                           {qwen3_5, qwen3_5_defaults},
                                                                           {qwen3_moe, qwen3_moe_defaults},
                                                                           {qwen3_vl_moe, qwen3_vl_moe_defaults},
                                                                           {qwen3_5_moe, qwen3_5_moe_defaults},
                                                                           {paddleocr, paddleocr_defaults},
                                                                           {ernie, ernie_defaults},
                                                                           {glm4, glm4_defaults},
                                                                           {glm_ocr, glm_ocr_defaults},
                                                                           {glm4v, glm4v_defaults},
                                                                           {hunyuan, hunyuan_defaults},
                                                                           {hunyuan_vl, hunyuan_vl_defaults}};
  return all.at(model_type)(config);
}

} // namespace fvlm::llama
