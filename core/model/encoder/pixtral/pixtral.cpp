// The vision encoder of Pixtral, Mistral Small 3.1, Ministral 3 and LightOnOCR (transformers' PixtralVisionModel).
#include "model/encoder/cell_vit.h"

namespace fvlm::model {

std::unique_ptr<Encoder> pixtral_encoder(const VisionConfig& config, Parameters& parameters) {
  const CellVit::Traits traits{.patch = "patch_conv",
                               .position = nullptr,
                               .input_norm = "ln_pre",
                               .layers = "transformer.layers.",
                               .before_attention = "attention_norm",
                               .qkv = {"attention.q_proj", "attention.k_proj", "attention.v_proj"},
                               .out = "attention.o_proj",
                               .before_mlp = "ffn_norm",
                               .up = {"feed_forward.gate_proj", "feed_forward.up_proj"},
                               .down = "feed_forward.down_proj",
                               .biases = false,
                               .frequencies_alternate = true};
  return std::make_unique<CellVit>(config, traits, parameters);
}

} // namespace fvlm::model
