// Ovis2's vision transformer, an AIMv2 (the transformer of transformers' Ovis2VisionModel): RMSNorms, also of the
// embedded patches, an MLP that SiLU gates, and no class token.
#include "model/encoder/vit.h"

namespace fvlm::model {

std::unique_ptr<Encoder> ovis2_vision_encoder(const VisionConfig& config, Parameters& parameters) {
  const Vit::Traits traits{.embedding = {nullptr, "position_embedding.weight", "patch_embedding", true, "rms_norm"},
                           .input_norm = nullptr,
                           .layers = "encoder.layers.",
                           .layer = {.before_attention = "rms_norm1",
                                     .query = "attention.q_proj",
                                     .key = "attention.k_proj",
                                     .value = "attention.v_proj",
                                     .out = "attention.out_proj",
                                     .before_mlp = "rms_norm2",
                                     .up = "ffn.up_proj",
                                     .down = "ffn.down_proj",
                                     .gate = "ffn.gate_proj"},
                           .output_norm = "rms_norm",
                           .output_bias = false};
  return std::make_unique<Vit>(config, traits, parameters);
}

} // namespace fvlm::model
