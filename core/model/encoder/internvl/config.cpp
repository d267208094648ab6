// The vision encoders of InternVL, InternViT (transformers' InternVLVisionModel), and of Qianfan-OCR
// (QianfanOCRVisionModel).
#include "model/weights/vit.h"

#include <fmt/format.h>

namespace fvlm {
namespace {

constexpr const char* qianfan_type = "qianfan_ocr_vision";

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  VisionConfig defaults;
  defaults.model_type = model_type;
  defaults.hidden_size = 1024;
  defaults.intermediate_size = 4096;
  defaults.num_hidden_layers = 24;
  defaults.num_attention_heads = 16;
  defaults.image_size = 448;
  defaults.patch_size = 14;
  defaults.layer_norm_eps = 1e-6;
  defaults.hidden_act = "gelu";
  defaults.initializer_range = 0.02;
  VisionConfig out = read_vit(reader, defaults);
  out.bare_layers = model_type == qianfan_type;
  out.attention_bias = reader.flag("attention_bias", out.bare_layers);
  out.use_qk_norm = reader.flag("use_qk_norm", false);
  out.use_mask_token = reader.flag("use_mask_token", false);
  out.layerscale_value = reader.number("layer_scale_init_value", 0.1, -1e6, 1e6);
  // transformers has a norm at the end of a model whose patches are not pooled.
  out.output_norm = !reader.flag("use_mean_pooling", true);
  const std::string norm = reader.text("norm_type", "layer_norm");
  out.rms_norm = norm == "rms_norm";
  reader.refuse_unless(out.rms_norm || norm == "layer_norm", "norm_type", "layer_norm and rms_norm are");
  reader.refuse_unless(reader.flag("use_absolute_position_embeddings", true), "use_absolute_position_embeddings",
                       "patches have an embedding of their position");
  for (const char* key : {"hidden_dropout_prob", "projection_dropout"})
    reader.refuse_unless(reader.number(key, 0, 0, 1) == 0, key, "encoders are trained without dropout; set it to 0");
  // Qianfan-OCR's drop_path_rate is of its own training: encoders are trained with all layers, as transformers
  // evaluates them.
  return out;
}

nlohmann::json write(const VisionConfig& config) {
  nlohmann::json out = write_vit(config);
  out["attention_bias"] = config.attention_bias;
  out["use_qk_norm"] = config.use_qk_norm;
  out["use_mask_token"] = config.use_mask_token;
  out["layer_scale_init_value"] = config.layerscale_value;
  out["use_mean_pooling"] = !config.output_norm;
  out["norm_type"] = config.rms_norm ? "rms_norm" : "layer_norm";
  out["use_absolute_position_embeddings"] = true;
  out["hidden_dropout_prob"] = out["projection_dropout"] = 0.0;
  return out;
}

WeightLayout layout(const VisionConfig& config) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size, patch = config.patch_size;
  const Initializer weight{Initializer::Kind::normal, config.initializer_range}, zero{Initializer::Kind::constant, 0},
      one{Initializer::Kind::constant, 1}, scale{Initializer::Kind::constant, config.layerscale_value};
  WeightLayout out;
  bool used = true;
  const auto add = [&](std::string name, std::vector<int64_t> shape, Initializer fill) {
    out.tensors.push_back({std::move(name), std::move(shape), fill, used});
  };
  const auto linear = [&](const std::string& name, int64_t outputs, int64_t inputs, bool bias = true) {
    add(name + ".weight", {outputs, inputs}, weight);
    if (bias) add(name + ".bias", {outputs}, zero);
  };
  const auto norm = [&](const std::string& name, bool bias) {
    add(name + ".weight", {width}, one);
    if (bias) add(name + ".bias", {width}, zero);
  };

  add("embeddings.cls_token", {1, 1, width}, zero);
  if (config.use_mask_token) {
    add("embeddings.mask_token", {1, 1, width}, zero);
    out.tensors.back().parameter = false;
  }
  add("embeddings.position_embeddings", {1, config.grid() * config.grid() + 1, width}, zero);
  add("embeddings.patch_embeddings.projection.weight", {width, config.num_channels, patch, patch}, weight);
  add("embeddings.patch_embeddings.projection.bias", {width}, zero);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    used = i < config.layers_used();
    const std::string layer = fmt::format("{}.{}.", config.bare_layers ? "layers" : "encoder.layer", i);
    norm(layer + "layernorm_before", !config.rms_norm);
    for (const char* name : {"attention.q_proj", "attention.k_proj", "attention.v_proj"})
      linear(layer + name, width, width, config.attention_bias);
    if (config.use_qk_norm)
      for (const char* name : {"attention.q_norm", "attention.k_norm"}) norm(layer + name, false);
    linear(layer + "attention.projection_layer", width, width);
    add(layer + "lambda_1", {width}, scale);
    norm(layer + "layernorm_after", !config.rms_norm);
    linear(layer + "mlp.fc1", mlp, width);
    linear(layer + "mlp.fc2", width, mlp);
    add(layer + "lambda_2", {width}, scale);
  }
  used = config.vision_feature_layers.empty();
  if (config.output_norm) norm("layernorm", true);
  return out;
}

} // namespace

EncoderFamily internvl_family() {
  return {.name = "internvl",
          .types = {{"internvl_vision", "InternVLVisionModel"}, {qianfan_type, "QianfanOCRVisionModel"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"attention.q_proj.weight", "attention.k_proj.weight", "attention.v_proj.weight"},
                            {"attention.q_proj.bias", "attention.k_proj.bias", "attention.v_proj.bias"}},
          .tokens_per_frame = vit_tokens_per_frame<true>};
}

} // namespace fvlm
