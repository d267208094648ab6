// The vision encoders of Qwen2-VL and Qwen2.5-VL (transformers' Qwen2VisionTransformerPretrainedModel and
// Qwen2_5_VisionTransformerPretrainedModel) without their mergers, which are the connector.
#include "model/weights/model_family.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {
namespace {

constexpr const char* qwen2_5 = "qwen2_5_vl_vision";

// Qwen2-VL calls the encoder's width embed_dim, and hidden_size what the merger makes.
struct Keys {
  const char *width, *out;
};

Keys keys_of(const std::string& model_type) {
  return model_type == qwen2_5 ? Keys{"hidden_size", "out_hidden_size"} : Keys{"embed_dim", "hidden_size"};
}

void check(ConfigReader& reader, const VisionConfig& config) {
  reader.refuse_unless(config.num_channels == 3, "in_channels", "frames have three channels");
  const char* activation = config.rms_norm ? "silu" : "quick_gelu";
  reader.refuse_unless(config.hidden_act == activation, "hidden_act", fmt::format("only {} is", activation));
  if (const nlohmann::json* rope = reader.object("rope_parameters")) {
    const bool is_plain = rope->value("rope_type", "axial") == "axial" && rope->value("rope_theta", 10000.0) == 10000.0;
    reader.refuse_unless(is_plain, "rope_parameters", "only the type axial with a theta of 10000 is");
  }
  if (config.hidden_size % (4 * config.num_attention_heads))
    reader.problems().add("{} heads of a width of {} have no dimensions that two axes share evenly in pairs",
                          config.num_attention_heads, config.hidden_size);
  if (config.rms_norm && config.window_size < config.image_size)
    reader.problems().add("'window_size' = {} is less than the {} pixels that become one row of the decoder",
                          config.window_size, config.image_size);
}

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  const bool is_qwen2_5 = model_type == qwen2_5;
  const auto [width, out_width] = keys_of(model_type);
  VisionConfig out;
  out.model_type = model_type;
  out.num_hidden_layers = reader.whole("depth", 32, 1, most_layers);
  out.num_attention_heads = reader.whole("num_heads", 16, 1, most_heads);
  out.hidden_size = reader.whole(width, is_qwen2_5 ? 3584 : 1280, 1, most_features);
  out.out_hidden_size = reader.whole(out_width, 3584, 1, most_features);
  out.intermediate_size = is_qwen2_5 ? reader.whole("intermediate_size", 3420, 1, most_features)
                                     : out.hidden_size * reader.whole("mlp_ratio", 4, 1, 64);
  out.hidden_act = reader.text("hidden_act", is_qwen2_5 ? "silu" : "quick_gelu");
  out.num_channels = reader.whole("in_channels", 3, 1, 1024);
  out.patch_size = reader.square("patch_size", 14, 1, 1 << 14);
  out.spatial_merge_size = reader.whole("spatial_merge_size", 2, 1, 64);
  out.temporal_patch_size = reader.whole("temporal_patch_size", 2, 1, 64);
  out.initializer_range = reader.number("initializer_range", 0.02, 0, 1e6);
  out.layer_norm_eps = 1e-6; // whatever a config says
  out.rms_norm = is_qwen2_5;
  out.image_size = out.patch_size * out.spatial_merge_size;
  if (is_qwen2_5) {
    out.window_size = reader.whole("window_size", 112, 1, 1 << 14);
    out.fullatt_block_indexes = reader.wholes("fullatt_block_indexes", {7, 15, 23, 31});
  }
  check(reader, out);
  return out;
}

nlohmann::json write(const VisionConfig& config) {
  const auto [width, out_width] = keys_of(config.model_type);
  nlohmann::json out{{"depth", config.num_hidden_layers},
                     {"num_heads", config.num_attention_heads},
                     {width, config.hidden_size},
                     {out_width, config.out_hidden_size},
                     {"hidden_act", config.hidden_act},
                     {"in_channels", config.num_channels},
                     {"patch_size", config.patch_size},
                     {"spatial_merge_size", config.spatial_merge_size},
                     {"temporal_patch_size", config.temporal_patch_size},
                     {"initializer_range", config.initializer_range}};
  if (config.model_type != qwen2_5) {
    out["mlp_ratio"] = config.intermediate_size / config.hidden_size;
  } else {
    out["intermediate_size"] = config.intermediate_size;
    out["window_size"] = config.window_size;
    out["fullatt_block_indexes"] = config.fullatt_block_indexes;
  }
  return out;
}

// Initialized as transformers does it.
WeightLayout layout(const VisionConfig& config) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size, patch = config.patch_size;
  const Initializer weight{Initializer::Kind::normal, config.initializer_range}, zero{Initializer::Kind::constant, 0},
      one{Initializer::Kind::constant, 1};
  WeightLayout out;
  out.ignored = {"merger.*"};
  const auto linear = [&](const std::string& name, int64_t outputs, int64_t inputs) {
    out.tensors.push_back({name + ".weight", {outputs, inputs}, weight});
    out.tensors.push_back({name + ".bias", {outputs}, zero});
  };
  const auto norm = [&](const std::string& name) {
    out.tensors.push_back({name + ".weight", {width}, one});
    if (!config.rms_norm) out.tensors.push_back({name + ".bias", {width}, zero});
  };
  out.tensors.push_back(
      {"patch_embed.proj.weight", {width, config.num_channels, config.temporal_patch_size, patch, patch}, weight});
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("blocks.{}.", i);
    norm(layer + "norm1");
    norm(layer + "norm2");
    linear(layer + "attn.qkv", 3 * width, width);
    linear(layer + "attn.proj", width, width);
    if (config.rms_norm) {
      linear(layer + "mlp.gate_proj", mlp, width);
      linear(layer + "mlp.up_proj", mlp, width);
      linear(layer + "mlp.down_proj", width, mlp);
    } else {
      linear(layer + "mlp.fc1", mlp, width);
      linear(layer + "mlp.fc2", width, mlp);
    }
  }
  return out;
}

int64_t token_count(const VisionConfig& config, int64_t height, int64_t width) {
  return (height / config.patch_size) * (width / config.patch_size);
}

} // namespace

EncoderFamily qwen2_vl_family() {
  return {.name = "qwen2_vl",
          .types = {{"qwen2_vl_vision", "Qwen2VisionTransformerPretrainedModel"},
                    {qwen2_5, "Qwen2_5_VisionTransformerPretrainedModel"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"mlp.gate_proj.weight", "mlp.up_proj.weight"}, {"mlp.gate_proj.bias", "mlp.up_proj.bias"}},
          .tokens_per_frame = token_count};
}

} // namespace fvlm
