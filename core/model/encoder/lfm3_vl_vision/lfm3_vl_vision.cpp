// The vision encoder of LFM3-VL.
#include "model/encoder/cell_vit.h"

namespace fvlm::model {

std::unique_ptr<Encoder> lfm3_vl_vision_encoder(const VisionConfig& config, Parameters& parameters) {
  static constexpr CellVit::Traits::Convolution convolution{"conv.in_proj", "conv.spatial_conv", "conv.out_proj"};
  const CellVit::Traits traits{.patch = "patchifier",
                               .position = nullptr,
                               .input_norm = "embedding_norm",
                               .layers = "layers.",
                               .before_attention = "operator_norm",
                               .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                               .out = "self_attn.out_proj",
                               .before_mlp = "ffn_norm",
                               .up = {"feed_forward.w1", "feed_forward.w3"},
                               .down = "feed_forward.w2",
                               .biases = false,
                               .q_norm = "self_attn.q_layernorm",
                               .k_norm = "self_attn.k_layernorm",
                               .convolution = &convolution};
  return std::make_unique<CellVit>(config, traits, parameters);
}

} // namespace fvlm::model
