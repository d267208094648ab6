// The vision encoders of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, GLM-OCR and GLM-4.1V.
#include "model/encoder/cell_vit.h"

namespace fvlm::model {

std::unique_ptr<Encoder> qwen2_vl_encoder(const VisionConfig& config, Parameters& parameters) {
  const bool has_positions = config.num_position_embeddings > 0;
  CellVit::Traits traits{.patch = "patch_embed.proj",
                         .position = has_positions ? "pos_embed" : nullptr,
                         .input_norm = nullptr,
                         .layers = "blocks.",
                         .before_attention = "norm1",
                         .qkv = {"attn.qkv"},
                         .out = "attn.proj",
                         .before_mlp = "norm2",
                         .up = {has_positions ? "mlp.linear_fc1" : "mlp.fc1"},
                         .down = has_positions ? "mlp.linear_fc2" : "mlp.fc2"};
  if (config.rms_norm) traits.up = {"mlp.gate_proj", "mlp.up_proj"}, traits.down = "mlp.down_proj";
  if (config.output_norm) {
    traits.biases = config.attention_bias;
    traits.output_norm = "post_layernorm";
    traits.patch_bias = true;
  }
  if (config.qk_head_norm) traits.q_norm = "attn.q_norm", traits.k_norm = "attn.k_norm";
  if (config.position_cubic)
    traits.position = "embeddings.position_embedding", traits.input_norm = "post_conv_layernorm";
  return std::make_unique<CellVit>(config, traits, parameters);
}

} // namespace fvlm::model
