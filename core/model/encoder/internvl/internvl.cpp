// The vision transformer of InternVL and Qianfan-OCR (transformers' InternVLVisionModel, QianfanOCRVisionModel): a
// class token, a bias in the patch embedding and LayerScale; what its norms and its attention are, the config says.
// Files of a mean pooling have no norm at the end.
#include "model/encoder/vit.h"

namespace fvlm::model {

std::unique_ptr<Encoder> internvl_encoder(const VisionConfig& config, Parameters& parameters) {
  const Vit::Traits traits{.embedding = {"cls_token", "position_embeddings", "patch_embeddings.projection", true},
                           .input_norm = nullptr,
                           .layers = config.bare_layers ? "layers." : "encoder.layer.",
                           .layer = {.before_attention = "layernorm_before",
                                     .query = "attention.q_proj",
                                     .key = "attention.k_proj",
                                     .value = "attention.v_proj",
                                     .out = "attention.projection_layer",
                                     .before_mlp = "layernorm_after",
                                     .up = "mlp.fc1",
                                     .down = "mlp.fc2",
                                     .attention_scale = "lambda_1",
                                     .mlp_scale = "lambda_2",
                                     .query_norm = "attention.q_norm",
                                     .key_norm = "attention.k_norm"},
                           .output_norm = config.output_norm ? "layernorm" : nullptr};
  return std::make_unique<Vit>(config, traits, parameters);
}

} // namespace fvlm::model
