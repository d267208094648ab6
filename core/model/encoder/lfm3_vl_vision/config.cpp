// The vision encoder of LFM3-VL (transformers' Lfm3VlVisionModel): layers of gated convolutions over the patches of an
// image, and of attention with rotary positions by line and column.
#include "model/encoder/axial_rope.h"
#include "model/weights/vit.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace fvlm {
namespace {

constexpr const char *layer_types_key = "layer_types", *kernel_key = "conv_kernel_size", *convolution = "conv",
                     *attention = "full_attention", *rope_key = "rope_parameters";
constexpr double usual_theta = 1e6;

// The first two layers, and then every second one, or what the config says.
void read_layers(ConfigReader& reader, VisionConfig& out) {
  const std::vector<std::string> types = reader.texts(layer_types_key);
  const bool fits = std::ssize(types) == out.num_hidden_layers;
  reader.refuse_unless(types.empty() || fits, layer_types_key,
                       fmt::format("there are {} layers, and each has an entry", out.num_hidden_layers));
  reader.refuse_unless(
      std::ranges::all_of(types, [](const auto& one) { return one == convolution || one == attention; }),
      layer_types_key, fmt::format("an entry is {} or {}", convolution, attention));
  for (int64_t i = 0; i < out.num_hidden_layers; ++i)
    out.conv_layers.push_back(fits ? types[static_cast<size_t>(i)] == convolution : i < 2 || i % 2 == 1);
  constexpr int64_t most = 15;
  out.conv_kernel_size = reader.whole(kernel_key, 3, 1, most);
  reader.refuse_unless(out.conv_kernel_size % 2 == 1, kernel_key,
                       "a patch is in the middle of those around it: odd ones are");
}

void check(ConfigReader& reader, const VisionConfig& config) {
  reader.refuse_unless(config.num_channels == 3, "in_channels", "frames have three channels");
  if (config.hidden_size % config.num_attention_heads == 0 && config.num_attention_heads % config.num_key_value_heads)
    reader.problems().add("'num_key_value_heads' = {} is no divisor of 'num_attention_heads' = {}",
                          config.num_key_value_heads, config.num_attention_heads);
  check_axial_rope(reader, config);
}

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  VisionConfig out;
  out.model_type = model_type;
  out.num_hidden_layers = reader.whole("num_hidden_layers", 14, 1, most_layers);
  out.num_attention_heads = reader.whole("num_attention_heads", 16, 1, most_heads);
  out.num_key_value_heads = reader.whole("num_key_value_heads", 8, 1, most_heads);
  out.hidden_size = reader.whole("hidden_size", 1024, 1, most_features);
  out.intermediate_size = reader.whole("intermediate_size", 2560, 1, most_features);
  out.num_channels = reader.whole("in_channels", 3, 1, 1024);
  out.patch_size = reader.square("patch_size", 16, 1, 1 << 14);
  out.spatial_merge_size = reader.whole("spatial_merge_size", 2, 1, 64);
  out.temporal_patch_size = reader.whole("temporal_patch_size", 2, 1, 64);
  out.initializer_range = reader.number("initializer_range", 0.02, 0, 1e6);
  out.layer_norm_eps = reader.number("norm_eps", 1e-5, 0, 1);
  out.rms_norm = out.qk_head_norm = true;
  out.image_size = out.patch_size * out.spatial_merge_size;
  out.rope_theta = usual_theta;
  read_layers(reader, out);
  check(reader, out);
  return out;
}

nlohmann::json write(const VisionConfig& config) {
  nlohmann::json out{{"num_hidden_layers", config.num_hidden_layers},
                     {"num_attention_heads", config.num_attention_heads},
                     {"num_key_value_heads", config.num_key_value_heads},
                     {"hidden_size", config.hidden_size},
                     {"intermediate_size", config.intermediate_size},
                     {"in_channels", config.num_channels},
                     {"patch_size", config.patch_size},
                     {"spatial_merge_size", config.spatial_merge_size},
                     {"temporal_patch_size", config.temporal_patch_size},
                     {"norm_eps", config.layer_norm_eps},
                     {"initializer_range", config.initializer_range},
                     {kernel_key, config.conv_kernel_size},
                     {rope_key, {{"rope_type", "axial"}, {"rope_theta", config.rope_theta}}}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    out[layer_types_key].push_back(config.has_convolution(i) ? convolution : attention);
  return out;
}

// Initialized as transformers does it.
WeightLayout layout(const VisionConfig& config) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size, head = config.head_dim(),
                side = config.conv_kernel_size;
  const Initializer normal{Initializer::Kind::normal, config.initializer_range}, one{Initializer::Kind::constant, 1};
  WeightLayout out;
  out.tensors = {{"patchifier.weight",
                  {width, config.num_channels * config.temporal_patch_size * config.patch_size * config.patch_size},
                  normal},
                 {"embedding_norm.weight", {width}, one}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const auto add = [&](const char* name, std::vector<int64_t> shape, const Initializer& fill) {
      out.tensors.push_back({fmt::format("layers.{}.{}.weight", i, name), std::move(shape), fill});
    };
    add("operator_norm", {width}, one);
    if (config.has_convolution(i)) {
      add("conv.in_proj", {3 * width, width}, normal);
      add("conv.spatial_conv", {width, 1, side, side}, normal);
      add("conv.out_proj", {width, width}, normal);
    } else {
      add("self_attn.q_proj", {width, width}, normal);
      for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"})
        add(name, {config.key_heads() * head, width}, normal);
      add("self_attn.out_proj", {width, width}, normal);
      for (const char* name : {"self_attn.q_layernorm", "self_attn.k_layernorm"}) add(name, {head}, one);
    }
    add("ffn_norm", {width}, one);
    for (const char* name : {"feed_forward.w1", "feed_forward.w3"}) add(name, {mlp, width}, normal);
    add("feed_forward.w2", {width, mlp}, normal);
  }
  return out;
}

} // namespace

EncoderFamily lfm3_vl_vision_family() {
  return {.name = "lfm3_vl_vision",
          .types = {{"lfm3_vl_vision", "Lfm3VlVisionModel"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
                            {"feed_forward.w1.weight", "feed_forward.w3.weight"}},
          .tokens_per_frame = vit_tokens_per_frame<false>};
}

} // namespace fvlm
