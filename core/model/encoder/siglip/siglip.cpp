// SigLIP's vision transformer (transformers' SiglipVisionModel without its head): no class token, a bias in the patch
// embedding, and as output the hidden states after post_layernorm. Idefics3 and SmolVLM have the same one, but choose
// position embeddings of frames of other sizes in their own way.
#include "model/encoder/vit.h"

namespace fvlm::model {

std::unique_ptr<Encoder> siglip_encoder(const VisionConfig& config, Parameters& parameters) {
  const Vit::Traits traits = Vit::clip_traits(/*class_token=*/false, /*patch_bias=*/true, /*output_normed=*/true);
  return std::make_unique<Vit>(config, traits, parameters);
}

} // namespace fvlm::model
