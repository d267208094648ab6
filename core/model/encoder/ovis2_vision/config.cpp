// The vision encoder of Ovis2, an AIMv2 (transformers' Ovis2VisionModel without the head that chooses visual words,
// which belongs to the connector).
#include "model/weights/vit.h"

#include <fmt/format.h>

namespace fvlm {
namespace {

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  VisionConfig defaults;
  defaults.model_type = model_type;
  defaults.hidden_size = 1024;
  defaults.intermediate_size = 2816;
  defaults.num_hidden_layers = 24;
  defaults.num_attention_heads = 8;
  defaults.image_size = 224;
  defaults.patch_size = 14;
  defaults.hidden_act = "silu";
  defaults.initializer_range = 0.02;
  defaults.rms_norm = true;
  defaults.attention_bias = false;
  VisionConfig out = read_vit(reader, defaults);
  out.layer_norm_eps = reader.number("rms_norm_eps", 1e-5, 0, 1);
  for (const char* key : {"qkv_bias", "mlp_bias"})
    reader.refuse_unless(!reader.flag(key, false), key, "the linears of this tower have no biases: only false is");
  return out;
}

nlohmann::json write(const VisionConfig& config) {
  nlohmann::json out = write_vit(config);
  out.erase("layer_norm_eps");
  out["rms_norm_eps"] = config.layer_norm_eps;
  out["qkv_bias"] = out["mlp_bias"] = false;
  return out;
}

WeightLayout layout(const VisionConfig& config) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size, patch = config.patch_size;
  const Initializer weight{Initializer::Kind::normal, config.initializer_range}, zero,
      one{Initializer::Kind::constant, 1};
  WeightLayout out;
  out.optional_prefix = "transformer.";
  out.ignored = {"head_linear.*", "head_norm.*"};
  bool used = true;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, Initializer fill) {
    out.tensors.push_back({name, std::move(shape), fill, used});
  };
  add("embeddings.patch_embedding.weight", {width, config.num_channels, patch, patch}, weight);
  add("embeddings.patch_embedding.bias", {width}, zero);
  add("embeddings.position_embedding.weight", {config.grid() * config.grid(), width}, weight);
  add("embeddings.rms_norm.weight", {width}, one);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    used = i < config.layers_used();
    const std::string layer = fmt::format("encoder.layers.{}.", i);
    add(layer + "rms_norm1.weight", {width}, one);
    for (const char* name : {"attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.out_proj"})
      add(layer + name + ".weight", {width, width}, weight);
    add(layer + "rms_norm2.weight", {width}, one);
    for (const char* name : {"ffn.gate_proj", "ffn.up_proj"}) add(layer + name + ".weight", {mlp, width}, weight);
    add(layer + "ffn.down_proj.weight", {width, mlp}, weight);
  }
  used = config.vision_feature_layers.empty();
  add("rms_norm.weight", {width}, one);
  return out;
}

} // namespace

EncoderFamily ovis2_vision_family() {
  return {.name = "ovis2_vision",
          .types = {{"ovis2_vision", "Ovis2VisionModel"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"attention.q_proj.weight", "attention.k_proj.weight", "attention.v_proj.weight"},
                            {"ffn.gate_proj.weight", "ffn.up_proj.weight"}},
          .tokens_per_frame = vit_tokens_per_frame<false>};
}

} // namespace fvlm
