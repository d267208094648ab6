// CLIP's vision encoder (transformers' CLIPVisionModel), by itself or as part of a whole CLIP.
#include "model/weights/vit.h"

#include <cmath>

namespace fvlm {
namespace {

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  VisionConfig defaults;
  defaults.model_type = model_type;
  defaults.hidden_size = 768;
  defaults.intermediate_size = 3072;
  defaults.num_hidden_layers = defaults.num_attention_heads = 12;
  defaults.image_size = 224;
  defaults.patch_size = 32;
  defaults.layer_norm_eps = 1e-5;
  defaults.hidden_act = "quick_gelu";
  defaults.initializer_range = 0.02;
  return read_vit(reader, defaults);
}

WeightLayout layout(const VisionConfig& config) {
  const double factor = config.initializer_factor, width = static_cast<double>(config.hidden_size),
               layers = static_cast<double>(config.num_hidden_layers);
  const auto normal = [factor](double deviation) { return Initializer{Initializer::Kind::normal, deviation * factor}; };
  const Initializer embedding = normal(config.initializer_range), into_residual = normal(1 / std::sqrt(width)),
                    by_depth = normal(1 / std::sqrt(2 * width * layers));
  return vit_layout(config, true, false,
                    {.class_token = into_residual,
                     .position = embedding,
                     .patch = embedding,
                     .query_key_value = by_depth,
                     .out = into_residual,
                     .up = normal(1 / std::sqrt(2 * width)),
                     .down = by_depth,
                     .mlp_bias = {}});
}

} // namespace

EncoderFamily clip_family() {
  return {.name = "clip",
          .types = {{"clip_vision_model", "CLIPVisionModel", "clip"}},
          .read = read,
          .write = write_vit,
          .layout = layout,
          .fused_weights = vit_fused_weights(),
          .tokens_per_frame = vit_tokens_per_frame<true>};
}

} // namespace fvlm
