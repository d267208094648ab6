// DINOv2 (transformers' Dinov2Model): pre-norm ViT with LayerScale and a learned position embedding. Its version with
// registers (Dinov2WithRegistersModel) has learned rows beside the patches, and other positions at other frame sizes.
#include "model/weights/model_family.h"

#include <fmt/format.h>

namespace fvlm {
namespace {

constexpr const char* with_registers = "dinov2_with_registers";

VisionConfig read(ConfigReader& config, const std::string& model_type) {
  VisionConfig out;
  out.model_type = model_type;
  out.hidden_size = config.whole("hidden_size", 768, 1, most_features);
  out.num_hidden_layers = config.whole("num_hidden_layers", 12, 1, most_layers);
  out.num_attention_heads = config.whole("num_attention_heads", 12, 1, most_heads);
  double ratio = config.number("mlp_ratio", 4, 0, 64);
  out.intermediate_size = static_cast<int64_t>(static_cast<double>(out.hidden_size) * ratio);
  out.image_size = config.square("image_size", 224, 1, 1 << 14);
  out.patch_size = config.square("patch_size", model_type == with_registers ? 16 : 14, 1, 1 << 14);
  out.num_channels = config.whole("num_channels", 3, 1, 1024);
  out.layer_norm_eps = config.number("layer_norm_eps", 1e-6, 0, 1);
  out.layerscale_value = config.number("layerscale_value", 1, -1e6, 1e6);
  out.initializer_range = config.number("initializer_range", 0.02, 0, 1e6);
  if (model_type == with_registers) {
    out.num_register_tokens = config.whole("num_register_tokens", 4, 1, 1024);
    out.position_antialias = true;
  } else {
    out.use_mask_token = config.flag("use_mask_token", true);
  }

  config.refuse_unless(out.num_channels == 3, "num_channels", "frames have three channels");
  std::string activation = config.text("hidden_act", "gelu");
  config.refuse_unless(activation == "gelu", "hidden_act", "only gelu is");
  config.refuse_unless(config.flag("qkv_bias", true), "qkv_bias", "queries, keys and values have a bias");
  config.refuse_unless(!config.flag("use_swiglu_ffn", false), "use_swiglu_ffn", "the MLP is the one with GELU");
  for (const char* key : {"hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate"})
    config.refuse_unless(config.number(key, 0, 0, 1) == 0, key, "towers are trained without dropout; set it to 0");

  if (out.hidden_size % out.num_attention_heads)
    config.problems().add("'num_attention_heads' = {} heads do not share 'hidden_size' = {} evenly",
                          out.num_attention_heads, out.hidden_size);
  if (out.intermediate_size < 1)
    config.problems().add("'mlp_ratio' = {:g} leaves no features in the MLP of 'hidden_size' = {}", ratio,
                          out.hidden_size);
  if (out.patch_size > out.image_size)
    config.problems().add("'patch_size' = {} is more than 'image_size' = {}", out.patch_size, out.image_size);
  return out;
}

nlohmann::json write(const VisionConfig& config) {
  nlohmann::json out{{"hidden_size", config.hidden_size},
                     {"num_hidden_layers", config.num_hidden_layers},
                     {"num_attention_heads", config.num_attention_heads},
                     {"mlp_ratio", config.intermediate_size % config.hidden_size == 0
                                       ? nlohmann::json(config.intermediate_size / config.hidden_size)
                                       : nlohmann::json((static_cast<double>(config.intermediate_size) + 0.5) /
                                                        static_cast<double>(config.hidden_size))},
                     {"image_size", config.image_size},
                     {"patch_size", config.patch_size},
                     {"num_channels", config.num_channels},
                     {"layer_norm_eps", config.layer_norm_eps},
                     {"layerscale_value", config.layerscale_value},
                     {"initializer_range", config.initializer_range},
                     {"hidden_act", "gelu"},
                     {"qkv_bias", true},
                     {"use_swiglu_ffn", false},
                     {"hidden_dropout_prob", 0.0},
                     {"attention_probs_dropout_prob", 0.0},
                     {"drop_path_rate", 0.0}};
  if (config.num_register_tokens > 0)
    out["num_register_tokens"] = config.num_register_tokens;
  else
    out["use_mask_token"] = config.use_mask_token;
  return out;
}

WeightLayout layout(const VisionConfig& config) {
  int64_t width = config.hidden_size, mlp = config.intermediate_size, patch = config.patch_size;
  Initializer weight{Initializer::Kind::normal, config.initializer_range}, zero{Initializer::Kind::constant, 0},
      one{Initializer::Kind::constant, 1}, scale{Initializer::Kind::constant, config.layerscale_value};
  WeightLayout out;
  out.optional_prefix = config.model_type + ".";
  out.ignored = {"classifier.weight", "classifier.bias"}; // of Dinov2ForImageClassification
  auto add = [&](std::string name, std::vector<int64_t> shape, Initializer fill) {
    out.tensors.push_back({std::move(name), std::move(shape), fill});
  };
  auto linear = [&](const std::string& name, int64_t outputs, int64_t inputs) {
    add(name + ".weight", {outputs, inputs}, weight);
    add(name + ".bias", {outputs}, zero);
  };
  auto norm = [&](const std::string& name) {
    add(name + ".weight", {width}, one);
    add(name + ".bias", {width}, zero);
  };

  add("embeddings.cls_token", {1, 1, width}, weight);
  if (config.use_mask_token) {
    add("embeddings.mask_token", {1, width}, zero);
    out.tensors.back().parameter = false;
  }
  if (config.num_register_tokens > 0) add("embeddings.register_tokens", {1, config.num_register_tokens, width}, zero);
  add("embeddings.position_embeddings", {1, config.grid() * config.grid() + 1, width}, weight);
  add("embeddings.patch_embeddings.projection.weight", {width, config.num_channels, patch, patch}, weight);
  add("embeddings.patch_embeddings.projection.bias", {width}, zero);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    std::string layer = fmt::format("encoder.layer.{}.", i);
    norm(layer + "norm1");
    for (const char* one_of_three : {"query", "key", "value"})
      linear(layer + "attention.attention." + one_of_three, width, width);
    linear(layer + "attention.output.dense", width, width);
    add(layer + "layer_scale1.lambda1", {width}, scale);
    norm(layer + "norm2");
    linear(layer + "mlp.fc1", mlp, width);
    linear(layer + "mlp.fc2", width, mlp);
    add(layer + "layer_scale2.lambda1", {width}, scale);
  }
  norm("layernorm");
  return out;
}

int64_t token_count(const VisionConfig& config, int64_t height, int64_t width) {
  return 1 + config.num_register_tokens + (height / config.patch_size) * (width / config.patch_size);
}

} // namespace

EncoderFamily dinov2_family() {
  return {.name = "dinov2",
          .types = {{"dinov2", "Dinov2Model"}, {with_registers, "Dinov2WithRegistersModel"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"attention.attention.query.weight", "attention.attention.key.weight",
                             "attention.attention.value.weight"},
                            {"attention.attention.query.bias", "attention.attention.key.bias",
                             "attention.attention.value.bias"}},
          .tokens_per_frame = token_count};
}

} // namespace fvlm
