// The vision encoder of HunyuanOCR.
#include "model/encoder/cell_vit.h"

namespace fvlm::model {

std::unique_ptr<Encoder> hunyuan_vl_vision_encoder(const VisionConfig& config, Parameters& parameters) {
  const CellVit::Traits traits{.patch = "embeddings.patch_embedding",
                               .position = "embeddings.position_embedding",
                               .input_norm = nullptr,
                               .layers = "layers.",
                               .before_attention = "layer_norm1",
                               .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                               .out = "self_attn.o_proj",
                               .before_mlp = "layer_norm2",
                               .up = {"mlp.fc1"},
                               .down = "mlp.fc2",
                               .rotates = false};
  return std::make_unique<CellVit>(config, traits, parameters);
}

} // namespace fvlm::model
