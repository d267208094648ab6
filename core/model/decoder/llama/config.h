// What distinguishes the models of Llama's family, and words of their config.json.
#pragma once
#include "model/weights/model_family.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace fvlm::llama {

inline constexpr int64_t most_positions = int64_t{1} << 30, most_taps = 64;
inline constexpr const char *qwen2_vl = "qwen2_vl_text", *qwen2_5_vl = "qwen2_5_vl_text", *qwen3_vl = "qwen3_vl_text";
inline constexpr const char* paddleocr = "paddleocr_vl_text";
inline constexpr const char *glm_ocr = "glm_ocr_text", *glm4v = "glm4v_text", *glm4 = "glm4", *ernie = "ernie4_5";
inline constexpr const char *hunyuan = "hunyuan_v1_dense", *hunyuan_vl = "hunyuan_vl_text";
inline constexpr const char *mistral = "mistral", *ministral3 = "ministral3";
inline constexpr const char *gemma2 = "gemma2", *gemma3 = "gemma3_text", *lfm2 = "lfm2", *lfm3 = "lfm3",
                            *qwen3_5 = "qwen3_5_text";
inline constexpr const char* embedding_range_key = "embedding_initializer_range"; // only our own configurations have it
inline constexpr const char *layer_types_key = "layer_types", *window_key = "sliding_window",
                            *cap_key = "final_logit_softcapping", *score_cap_key = "attn_logit_softcapping",
                            *query_scale_key = "query_pre_attn_scalar";
inline constexpr const char *full_attention = "full_attention", *sliding_attention = "sliding_attention",
                            *convolution = "conv", *linear_attention = "linear_attention";
inline constexpr const char *head_gates_key = "use_attention_gate", *post_norms_key = "use_sandwich_norm"; // of LFM3
inline constexpr const char *qwen3_moe = "qwen3_moe", *qwen3_vl_moe = "qwen3_vl_moe_text",
                            *qwen3_5_moe = "qwen3_5_moe_text", *lfm2_moe = "lfm2_moe";
inline constexpr const char* use_bias_key = "use_bias"; // of all linears
inline constexpr const char* gelu_tanh = "gelu_pytorch_tanh";

// The traits of a model_type, and the sizes that it has where config.json lacks them. A head_dim of 0 stands for
// hidden_size / num_attention_heads, num_key_value_heads of 0 for num_attention_heads.
DecoderConfig defaults(ConfigReader& config, const std::string& model_type);

// What each layer is, of a config whose sizes are read, and as layer_types says it.
void read_layers(ConfigReader& config, DecoderConfig& out);
nlohmann::json layer_types_of(const DecoderConfig& config);

// Which layers have experts, and what these are; and the same in a config.json.
void read_experts(ConfigReader& config, DecoderConfig& out);
void write_experts(const DecoderConfig& config, nlohmann::json& out);
// The tensors of such a layer in place of an MLP's; `stem`: before their names.
void add_experts(WeightLayout& layout, const DecoderConfig& config, const std::string& stem, const Initializer& inner,
                 const Initializer& last);
// Names of these tensors behind the layer's, in the order in which they lie in memory: of each expert gate and up, and
// of each expert down.
struct ExpertNames {
  std::vector<std::string> gate_up, down;
};
ExpertNames expert_names(const DecoderConfig& config);

// Of tensors that are not called the same in all models.
struct TensorNames {
  const char *attention_norm = "input_layernorm", *mlp_norm = "post_attention_layernorm", *final_norm = "norm";
  const char *q_norm = "self_attn.q_norm", *k_norm = "self_attn.k_norm", *out = "self_attn.o_proj";
  const char *gate = "mlp.gate_proj", *up = "mlp.up_proj", *down = "mlp.down_proj";
  const char *router = "mlp.gate", *expert_bias = "feed_forward.expert_bias";
  const char *experts = "mlp.experts.", *expert_gate = "gate_proj", *expert_up = "up_proj", *expert_down = "down_proj";
  const char *shared_gate = "mlp.shared_expert_gate", *shared = "mlp.shared_expert.";
  // Of what a branch adds, where that is normalized.
  const char *attention_post_norm = "post_attention_layernorm", *mlp_post_norm = "post_feedforward_layernorm";
};
TensorNames names_of(const DecoderConfig& config);

} // namespace fvlm::llama
