// The vision encoder of Pixtral, Mistral Small 3.1 and Ministral 3 (transformers' PixtralVisionModel).
#include "model/encoder/axial_rope.h"
#include "model/weights/vit.h"

#include <fmt/format.h>

namespace fvlm {
namespace {

void check(ConfigReader& reader, const VisionConfig& config) {
  reader.refuse_unless(config.num_channels == 3, "num_channels", "frames have three channels");
  reader.refuse_unless(config.hidden_act == "silu", "hidden_act", "only silu is");
  reader.refuse_unless(reader.number("attention_dropout", 0, 0, 1) == 0, "attention_dropout",
                       "towers are trained without dropout; set it to 0");
  check_axial_rope(reader, config);
  const int64_t head_dim = reader.whole_or_null("head_dim", most_features).value_or(config.head_dim());
  if (head_dim * config.num_attention_heads != config.hidden_size)
    reader.problems().add("'head_dim' = {} is not 'hidden_size' = {} divided by the {} heads", head_dim,
                          config.hidden_size, config.num_attention_heads);
  // What a LLaVA says of its tower.
  constexpr const char *layer = "vision_feature_layer", *strategy = "vision_feature_select_strategy";
  if (reader.has(layer))
    reader.refuse_unless(reader.content().at(layer) == -1, layer,
                         "the decoder reads the last layer of this tower: -1 is");
  reader.refuse_unless(reader.text(strategy, "full") == "full", strategy,
                       "there is no class token that could be dropped: only full is");
}

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  VisionConfig out;
  out.model_type = model_type;
  out.num_hidden_layers = reader.whole("num_hidden_layers", 24, 1, most_layers);
  out.num_attention_heads = reader.whole("num_attention_heads", 16, 1, most_heads);
  out.hidden_size = reader.whole("hidden_size", 1024, 1, most_features);
  out.intermediate_size = reader.whole("intermediate_size", 4096, 1, most_features);
  out.hidden_act = reader.text("hidden_act", "gelu");
  out.num_channels = reader.whole("num_channels", 3, 1, 1024);
  out.patch_size = reader.square("patch_size", 16, 1, 1 << 14);
  out.spatial_merge_size = reader.whole("spatial_merge_size", 1, 1, 64); // import writes it here, for Mistral 3
  out.temporal_patch_size = 1;
  out.initializer_range = reader.number("initializer_range", 0.02, 0, 1e6);
  out.layer_norm_eps = 1e-5; // whatever a config says
  out.rms_norm = true;
  out.attention_bias = false;
  out.image_size = out.patch_size * out.spatial_merge_size; // that of configs bounds images, which their processor does
  check(reader, out);
  return out;
}

nlohmann::json write(const VisionConfig& config) {
  nlohmann::json out{{"num_hidden_layers", config.num_hidden_layers},
                     {"num_attention_heads", config.num_attention_heads},
                     {"hidden_size", config.hidden_size},
                     {"intermediate_size", config.intermediate_size},
                     {"hidden_act", config.hidden_act},
                     {"num_channels", config.num_channels},
                     {"patch_size", config.patch_size},
                     {"initializer_range", config.initializer_range}};
  if (config.spatial_merge_size > 1) out["spatial_merge_size"] = config.spatial_merge_size;
  return out;
}

// Initialized as transformers does it.
WeightLayout layout(const VisionConfig& config) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size, patch = config.patch_size;
  const Initializer normal{Initializer::Kind::normal, config.initializer_range}, one{Initializer::Kind::constant, 1};
  WeightLayout out;
  out.tensors = {{"patch_conv.weight", {width, config.num_channels, patch, patch}, normal},
                 {"ln_pre.weight", {width}, one}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("transformer.layers.{}.", i);
    out.tensors.push_back({layer + "attention_norm.weight", {width}, one});
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
      out.tensors.push_back({fmt::format("{}attention.{}.weight", layer, name), {width, width}, normal});
    out.tensors.push_back({layer + "ffn_norm.weight", {width}, one});
    for (const char* name : {"gate_proj", "up_proj"})
      out.tensors.push_back({fmt::format("{}feed_forward.{}.weight", layer, name), {mlp, width}, normal});
    out.tensors.push_back({layer + "feed_forward.down_proj.weight", {width, mlp}, normal});
  }
  return out;
}

} // namespace

EncoderFamily pixtral_family() {
  return {.name = "pixtral",
          .types = {{"pixtral", "PixtralVisionModel"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"attention.q_proj.weight", "attention.k_proj.weight", "attention.v_proj.weight"},
                            {"feed_forward.gate_proj.weight", "feed_forward.up_proj.weight"}},
          .tokens_per_frame = vit_tokens_per_frame<false>};
}

} // namespace fvlm
