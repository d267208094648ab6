// The vision encoder of HunyuanOCR (transformers' HunYuanVLVisionTransformer) without its merger, which is the
// connector: a SigLIP whose learned positions are interpolated to the patches of an image.
#include "base/config_reader.h"
#include "model/weights/vit.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fvlm {
namespace {

void check(ConfigReader& reader, const VisionConfig& config) {
  reader.refuse_unless(config.num_channels == 3, "num_channels", "frames have three channels");
  reader.refuse_unless(config.hidden_act == "gelu", "hidden_act", "only gelu is");
  reader.refuse_unless(reader.text("interpolate_mode", "bilinear") == "bilinear", "interpolate_mode",
                       "positions are interpolated linearly: only bilinear is");
  reader.refuse_unless(reader.number("attention_dropout", 0, 0, 1) == 0, "attention_dropout",
                       "towers are trained without dropout; set it to 0");
  reader.refuse_unless(reader.whole("temporal_patch_size", 1, 1, 64) == 1, "temporal_patch_size",
                       "this encoder reads single images: 1 is");
  if (config.hidden_size % config.num_attention_heads)
    reader.problems().add("'num_attention_heads' = {} heads do not share 'hidden_size' = {} evenly",
                          config.num_attention_heads, config.hidden_size);
  if (reader.whole_or_null("head_dim", most_features).value_or(config.head_dim()) != config.head_dim())
    reader.refuse_unless(false, "head_dim", fmt::format("heads share the width: {} is", config.head_dim()));
}

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  VisionConfig out;
  out.model_type = model_type;
  out.num_hidden_layers = reader.whole("num_hidden_layers", 27, 1, most_layers);
  out.num_attention_heads = reader.whole("num_attention_heads", 16, 1, most_heads);
  out.hidden_size = reader.whole("hidden_size", 1152, 1, most_features);
  out.intermediate_size = reader.whole("intermediate_size", 4304, 1, most_features);
  out.hidden_act = reader.text("hidden_act", "gelu");
  out.num_channels = reader.whole("num_channels", 3, 1, 1024);
  out.patch_size = reader.whole("patch_size", 16, 1, 1 << 14);
  out.spatial_merge_size = reader.whole("spatial_merge_size", 2, 1, 64);
  out.temporal_patch_size = 1;
  out.initializer_range = reader.number("initializer_range", 0.02, 0, 1e6);
  out.layer_norm_eps = reader.number("rms_norm_eps", 1e-5, 0, 1);
  out.image_size = out.patch_size * out.spatial_merge_size;
  const int64_t side = reader.whole("max_image_size", 2048, out.patch_size, 1 << 14) / out.patch_size;
  out.num_position_embeddings = side * side;
  out.position_centers = out.position_class = true;
  check(reader, out);
  return out;
}

nlohmann::json write(const VisionConfig& config) {
  return {{"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"hidden_act", config.hidden_act},
          {"num_channels", config.num_channels},
          {"patch_size", config.patch_size},
          {"spatial_merge_size", config.spatial_merge_size},
          {"max_image_size", config.patch_size * config.position_side()},
          {"rms_norm_eps", config.layer_norm_eps},
          {"initializer_range", config.initializer_range}};
}

// Initialized as transformers does it.
WeightLayout layout(const VisionConfig& config) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size, patch = config.patch_size;
  const Initializer normal{Initializer::Kind::normal, config.initializer_range}, zero,
      one{Initializer::Kind::constant, 1};
  WeightLayout out;
  out.ignored = {"patch_merger.*"};
  out.tensors = {{"embeddings.patch_embedding.weight", {width, config.num_channels, patch, patch}, normal},
                 {"embeddings.patch_embedding.bias", {width}, zero},
                 {"embeddings.position_embedding.weight", {config.num_position_embeddings + 1, width}, normal}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const auto add = [&](const char* name, std::vector<int64_t> shape, const Initializer& fill) {
      const int64_t rows = shape[0];
      out.tensors.push_back({fmt::format("layers.{}.{}.weight", i, name), std::move(shape), fill});
      out.tensors.push_back({fmt::format("layers.{}.{}.bias", i, name), {rows}, zero});
    };
    add("layer_norm1", {width}, one);
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"})
      add(name, {width, width}, normal);
    add("layer_norm2", {width}, one);
    add("mlp.fc1", {mlp, width}, normal);
    add("mlp.fc2", {width, mlp}, normal);
  }
  return out;
}

} // namespace

EncoderFamily hunyuan_vl_vision_family() {
  return {.name = "hunyuan_vl_vision",
          .types = {{"hunyuan_vl_vision", "HunYuanVLVisionTransformer"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
                            {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}},
          .tokens_per_frame = vit_tokens_per_frame<false>};
}

} // namespace fvlm
