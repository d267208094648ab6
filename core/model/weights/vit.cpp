#include "model/weights/vit.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace fvlm {
namespace {

// A layer, or a list of layers.
void read_feature_layers(ConfigReader& reader, VisionConfig& out) {
  constexpr const char* key = "vision_feature_layer";
  if (!reader.has(key)) return;
  const nlohmann::json& value = reader.content().at(key);
  for (const auto& one : value.is_array() ? value : nlohmann::json::array({value}))
    out.vision_feature_layers.push_back(one.is_number_integer() ? one.get<int64_t>() : 0);
  const auto is_layer = [&](int64_t layer) {
    return out.from_first(layer) >= 1 && out.from_first(layer) <= out.num_hidden_layers;
  };
  if (out.vision_feature_layers.empty() || !std::ranges::all_of(out.vision_feature_layers, is_layer))
    reader.problems().add("'{}' = {} is none of the {} layers, and no list of some", key, value.dump(),
                          out.num_hidden_layers);
}

} // namespace

VisionConfig read_vit(ConfigReader& reader, const VisionConfig& defaults) {
  VisionConfig out = defaults;
  out.hidden_size = reader.whole("hidden_size", defaults.hidden_size, 1, most_features);
  out.intermediate_size = reader.whole("intermediate_size", defaults.intermediate_size, 1, most_features);
  out.num_hidden_layers = reader.whole("num_hidden_layers", defaults.num_hidden_layers, 1, most_layers);
  out.num_attention_heads = reader.whole("num_attention_heads", defaults.num_attention_heads, 1, most_heads);
  out.num_channels = reader.whole("num_channels", 3, 1, 1024);
  out.image_size = reader.square("image_size", defaults.image_size, 1, 1 << 14);
  out.patch_size = reader.square("patch_size", defaults.patch_size, 1, 1 << 14);
  out.layer_norm_eps = reader.number("layer_norm_eps", defaults.layer_norm_eps, 0, 1);
  out.hidden_act = reader.text("hidden_act", defaults.hidden_act);
  out.initializer_range = reader.number("initializer_range", defaults.initializer_range, 0, 1e6);
  out.initializer_factor = reader.number("initializer_factor", 1, 0, 1e6);
  read_feature_layers(reader, out);
  out.vision_feature_select_strategy = reader.text("vision_feature_select_strategy", "full");

  reader.refuse_unless(out.num_channels == 3, "num_channels", "frames have three channels");
  if (defaults.hidden_act == "silu")
    reader.refuse_unless(out.hidden_act == "silu", "hidden_act", "the gate of this tower's MLP has silu: only silu is");
  else
    reader.refuse_unless(out.hidden_act == "gelu" || out.hidden_act == "quick_gelu" ||
                             out.hidden_act == "gelu_pytorch_tanh",
                         "hidden_act", "gelu, quick_gelu and gelu_pytorch_tanh are");
  reader.refuse_unless(reader.number("attention_dropout", 0, 0, 1) == 0, "attention_dropout",
                       "encoders are trained without dropout; set it to 0");
  const std::string& strategy = out.vision_feature_select_strategy;
  reader.refuse_unless(strategy == "full" || strategy == "default", "vision_feature_select_strategy",
                       "full and default are");
  if (out.hidden_size % out.num_attention_heads)
    reader.problems().add("'num_attention_heads' = {} heads do not share 'hidden_size' = {} evenly",
                          out.num_attention_heads, out.hidden_size);
  if (out.patch_size > out.image_size)
    reader.problems().add("'patch_size' = {} is more than 'image_size' = {}", out.patch_size, out.image_size);
  return out;
}

nlohmann::json write_vit(const VisionConfig& config) {
  nlohmann::json out{{"hidden_size", config.hidden_size},
                     {"intermediate_size", config.intermediate_size},
                     {"num_hidden_layers", config.num_hidden_layers},
                     {"num_attention_heads", config.num_attention_heads},
                     {"num_channels", config.num_channels},
                     {"image_size", config.image_size},
                     {"patch_size", config.patch_size},
                     {"layer_norm_eps", config.layer_norm_eps},
                     {"hidden_act", config.hidden_act},
                     {"initializer_range", config.initializer_range},
                     {"initializer_factor", config.initializer_factor},
                     {"attention_dropout", 0.0}};
  const std::vector<int64_t>& layers = config.vision_feature_layers;
  if (layers.size() == 1)
    out["vision_feature_layer"] = layers.front();
  else if (!layers.empty())
    out["vision_feature_layer"] = layers;
  if (config.vision_feature_select_strategy != "full")
    out["vision_feature_select_strategy"] = config.vision_feature_select_strategy;
  return out;
}

WeightLayout vit_layout(const VisionConfig& config, bool class_token, bool output_normed,
                        const VitInitializers& initializers) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size, patch = config.patch_size;
  const Initializer zero{Initializer::Kind::constant, 0}, one{Initializer::Kind::constant, 1};
  WeightLayout out;
  out.optional_prefix = "vision_model.";
  // The other parts of a whole model, and buffers of older files.
  out.ignored = {"text_model.*", "visual_projection.weight", "text_projection.weight", "logit_scale",
                 "logit_bias",   "embeddings.position_ids",  "classifier.weight",      "classifier.bias"};
  bool used = true;
  const auto add = [&](std::string name, std::vector<int64_t> shape, Initializer fill) {
    out.tensors.push_back({std::move(name), std::move(shape), fill, used});
  };
  const auto linear = [&](const std::string& name, int64_t outputs, int64_t inputs, Initializer weight,
                          Initializer bias) {
    add(name + ".weight", {outputs, inputs}, weight);
    add(name + ".bias", {outputs}, bias);
  };
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {width}, one);
    add(name + ".bias", {width}, zero);
  };

  if (class_token) add("embeddings.class_embedding", {width}, initializers.class_token);
  add("embeddings.patch_embedding.weight", {width, config.num_channels, patch, patch}, initializers.patch);
  if (!class_token) add("embeddings.patch_embedding.bias", {width}, zero);
  add("embeddings.position_embedding.weight", {config.grid() * config.grid() + (class_token ? 1 : 0), width},
      initializers.position);
  if (class_token) norm("pre_layrnorm");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    used = i < config.layers_used();
    const std::string layer = fmt::format("encoder.layers.{}.", i);
    norm(layer + "layer_norm1");
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"})
      linear(layer + name, width, width, initializers.query_key_value, zero);
    linear(layer + "self_attn.out_proj", width, width, initializers.out, zero);
    norm(layer + "layer_norm2");
    linear(layer + "mlp.fc1", mlp, width, initializers.up, initializers.mlp_bias);
    linear(layer + "mlp.fc2", width, mlp, initializers.down, initializers.mlp_bias);
  }
  used = output_normed && config.vision_feature_layers.empty();
  norm("post_layernorm");
  return out;
}

std::vector<FusedNames> vit_fused_weights() {
  return {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
          {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}};
}

} // namespace fvlm
