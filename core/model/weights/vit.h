// Configs and weights of the vision transformers that are called as in CLIP, for the families clip and siglip.
#pragma once
#include "model/weights/model_family.h"

namespace fvlm {

// What the families have in common. `defaults` are those of transformers.
VisionConfig read_vit(ConfigReader& reader, const VisionConfig& defaults);
nlohmann::json write_vit(const VisionConfig& config);

// How fresh weights are filled.
struct VitInitializers {
  Initializer class_token, position, patch;
  Initializer query_key_value, out, up, down, mlp_bias;
};
// pre_layrnorm, if there is a class token, the layers and post_layernorm. Weights that the output does not depend on
// are no parameters.
WeightLayout vit_layout(const VisionConfig& config, bool class_token, bool output_normed,
                        const VitInitializers& initializers);

std::vector<FusedNames> vit_fused_weights();

// See EncoderFamily::tokens_per_frame.
template <bool class_token>
int64_t vit_tokens_per_frame(const VisionConfig& config, int64_t height, int64_t width) {
  const bool keeps_class_token = class_token && config.vision_feature_select_strategy != "default";
  return (height / config.patch_size) * (width / config.patch_size) + (keeps_class_token ? 1 : 0);
}

} // namespace fvlm
