// CLIP's vision transformer (transformers' CLIPVisionModel): a class token, a norm before the layers, and as output the
// hidden states before post_layernorm, which belongs to the pooled output alone.
#include "model/encoder/vit.h"

namespace fvlm::model {

std::unique_ptr<Encoder> clip_encoder(const VisionConfig& config, Parameters& parameters) {
  const Vit::Traits traits = Vit::clip_traits(/*class_token=*/true, /*patch_bias=*/false, /*output_normed=*/false);
  return std::make_unique<Vit>(config, traits, parameters);
}

} // namespace fvlm::model
