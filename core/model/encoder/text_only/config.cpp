// In place of an encoder, where a decoder reads text alone.
#include "model/weights/model_family.h"

namespace fvlm {
namespace {

// Sizes that others divide by; nothing is encoded.
VisionConfig read(ConfigReader&, const std::string& model_type) {
  VisionConfig out;
  out.model_type = model_type;
  out.hidden_size = out.num_attention_heads = out.patch_size = 1;
  out.num_channels = 3;
  return out;
}

} // namespace

EncoderFamily text_only_family() {
  return {.name = "text_only",
          .types = {{"text_only", "TextOnly"}},
          .read = read,
          .write = [](const VisionConfig&) { return nlohmann::json::object(); },
          .layout = [](const VisionConfig&) { return WeightLayout(); },
          .fused_weights = {},
          .tokens_per_frame = [](const VisionConfig&, int64_t, int64_t) -> int64_t { return 1; }};
}

} // namespace fvlm
