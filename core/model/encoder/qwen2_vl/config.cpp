// The vision encoders of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, GLM-OCR and GLM-4.1V (transformers'
// Qwen2VisionTransformerPretrainedModel, Qwen2_5_VisionTransformerPretrainedModel, Qwen3VLVisionModel,
// Qwen3_5VisionModel, GlmOcrVisionModel and Glm4vVisionModel) without their mergers, which are the connector.
#include "model/encoder/axial_rope.h"
#include "model/weights/vit.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace fvlm {
namespace {

constexpr const char *qwen2 = "qwen2_vl_vision", *qwen2_5 = "qwen2_5_vl_vision", *qwen3 = "qwen3_vl_vision",
                     *qwen3_5 = "qwen3_5_vision", *glm_ocr = "glm_ocr_vision", *glm4v = "glm4v_vision";

bool is_glm(const std::string& model_type) {
  return model_type == glm_ocr || model_type == glm4v;
}

// Qwen2-VL calls the encoder's width embed_dim, and hidden_size what the merger makes.
struct Keys {
  const char *width, *out;
};

Keys keys_of(const std::string& model_type) {
  return model_type == qwen2 ? Keys{"embed_dim", "hidden_size"} : Keys{"hidden_size", "out_hidden_size"};
}

const char* activation_of(const std::string& model_type) {
  if (model_type == qwen2_5 || is_glm(model_type)) return "silu";
  return model_type == qwen2 ? "quick_gelu" : "gelu_pytorch_tanh";
}

// Qwen3.5 reads no inner layers.
void read_deepstack(ConfigReader& reader, VisionConfig& out) {
  constexpr const char* key = "deepstack_visual_indexes";
  if (out.model_type == qwen3)
    out.deepstack_visual_indexes = reader.wholes(key, {8, 16, 24});
  else
    reader.refuse_unless(reader.wholes(key, {}).empty(), key, "this model has no DeepStack: an empty list is");
}

void check_positions(ConfigReader& reader, const VisionConfig& config) {
  const std::vector<int64_t>& layers = config.deepstack_visual_indexes;
  const bool ascend = std::ranges::adjacent_find(layers, std::greater_equal()) == layers.end();
  reader.refuse_unless(ascend && (layers.empty() || layers.back() < config.num_hidden_layers),
                       "deepstack_visual_indexes",
                       fmt::format("layers from 0 to {} in ascending order are", config.num_hidden_layers - 1));
  const int64_t positions = config.num_position_embeddings, side = config.position_side();
  if (side * side != positions) reader.problems().add("'num_position_embeddings' = {} is no square", positions);
}

void check(ConfigReader& reader, const VisionConfig& config) {
  reader.refuse_unless(config.num_channels == 3, "in_channels", "frames have three channels");
  const char* activation = activation_of(config.model_type);
  reader.refuse_unless(config.hidden_act == activation, "hidden_act", fmt::format("only {} is", activation));
  check_axial_rope(reader, config);
  if (config.model_type == qwen2_5 && config.window_size < config.image_size)
    reader.problems().add("'window_size' = {} is less than the {} pixels that become one row of the decoder",
                          config.window_size, config.image_size);
  check_positions(reader, config);
}

void read_glm(ConfigReader& reader, VisionConfig& out) {
  const bool is_ocr = out.model_type == glm_ocr;
  out.num_hidden_layers = reader.whole("depth", 24, 1, most_layers);
  out.num_attention_heads = reader.whole("num_heads", is_ocr ? 16 : 12, 1, most_heads);
  out.hidden_size = reader.whole("hidden_size", is_ocr ? 1024 : 1536, 1, most_features);
  out.out_hidden_size = reader.whole("out_hidden_size", is_ocr ? 1536 : 4096, 1, most_features);
  // That of GLM-4.1V's config is the merger's.
  out.intermediate_size = is_ocr ? reader.whole("intermediate_size", 4096, 1, most_features) : out.out_hidden_size;
  out.layer_norm_eps = reader.number("rms_norm_eps", 1e-5, 0, 1);
  out.attention_bias = reader.flag("attention_bias", is_ocr);
  out.rms_norm = out.output_norm = true;
  out.qk_head_norm = is_ocr;
  if (!is_ocr) {
    const int64_t side = reader.square("image_size", 336, 1, 1 << 14) / out.patch_size;
    out.num_position_embeddings = side * side;
    out.position_cubic = true;
    reader.refuse_unless(side > 0, "image_size", fmt::format("a patch of {} pixels or more is", out.patch_size));
    reader.refuse_unless(!out.attention_bias, "attention_bias", "linears of the layers have no biases: only false is");
  }
  reader.refuse_unless(reader.number("attention_dropout", 0, 0, 1) == 0, "attention_dropout",
                       "towers are trained without dropout; set it to 0");
}

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  const bool is_qwen2 = model_type == qwen2, is_qwen2_5 = model_type == qwen2_5,
             has_positions = model_type == qwen3 || model_type == qwen3_5;
  const auto [width, out_width] = keys_of(model_type);
  VisionConfig out;
  out.model_type = model_type;
  out.num_hidden_layers = reader.whole("depth", has_positions ? 27 : 32, 1, most_layers);
  out.num_attention_heads = reader.whole("num_heads", 16, 1, most_heads);
  out.hidden_size = reader.whole(width, is_qwen2 ? 1280 : is_qwen2_5 ? 3584 : 1152, 1, most_features);
  out.out_hidden_size = reader.whole(out_width, 3584, 1, most_features);
  out.intermediate_size = is_qwen2 ? out.hidden_size * reader.whole("mlp_ratio", 4, 1, 64)
                                   : reader.whole("intermediate_size", is_qwen2_5 ? 3420 : 4304, 1, most_features);
  out.hidden_act = reader.text("hidden_act", activation_of(model_type));
  out.num_channels = reader.whole("in_channels", 3, 1, 1024);
  out.patch_size = reader.square("patch_size", has_positions ? 16 : 14, 1, 1 << 14);
  out.spatial_merge_size = reader.whole("spatial_merge_size", 2, 1, 64);
  out.temporal_patch_size = reader.whole("temporal_patch_size", 2, 1, 64);
  out.initializer_range = reader.number("initializer_range", 0.02, 0, 1e6);
  out.layer_norm_eps = 1e-6; // whatever a config says
  out.rms_norm = is_qwen2_5;
  out.output_norm = false;
  out.image_size = out.patch_size * out.spatial_merge_size;
  if (is_glm(model_type)) read_glm(reader, out);
  if (is_qwen2_5) {
    out.window_size = reader.whole("window_size", 112, 1, 1 << 14);
    out.tokens_per_second = reader.whole("tokens_per_second", 4, 1, 1000);
    out.fullatt_block_indexes = reader.wholes("fullatt_block_indexes", {7, 15, 23, 31});
  }
  if (has_positions) {
    out.num_position_embeddings = reader.whole("num_position_embeddings", 2304, 1, 1 << 24);
    read_deepstack(reader, out);
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
  if (config.model_type == qwen2)
    out["mlp_ratio"] = config.intermediate_size / config.hidden_size;
  else if (config.model_type != glm4v)
    out["intermediate_size"] = config.intermediate_size;
  if (is_glm(config.model_type)) {
    out["rms_norm_eps"] = config.layer_norm_eps;
    out["attention_bias"] = config.attention_bias;
  }
  if (config.position_cubic)
    out["image_size"] = config.patch_size * config.position_side();
  else if (config.num_position_embeddings > 0)
    out["num_position_embeddings"] = config.num_position_embeddings;
  if (config.model_type == qwen3) out["deepstack_visual_indexes"] = config.deepstack_visual_indexes;
  if (config.model_type == qwen2_5) {
    out["window_size"] = config.window_size;
    out["tokens_per_second"] = config.tokens_per_second;
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
  const bool has_positions = config.num_position_embeddings > 0;
  out.ignored = {"merger.*"};
  if (config.model_type == qwen3) out.ignored.push_back("deepstack_merger_list.*");
  if (config.output_norm) out.ignored.push_back("downsample.*");
  const auto linear = [&](const std::string& name, int64_t outputs, int64_t inputs) {
    out.tensors.push_back({name + ".weight", {outputs, inputs}, weight});
    if (config.attention_bias) out.tensors.push_back({name + ".bias", {outputs}, zero});
  };
  const auto norm = [&](const std::string& name) {
    out.tensors.push_back({name + ".weight", {width}, one});
    if (!config.rms_norm) out.tensors.push_back({name + ".bias", {width}, zero});
  };
  out.tensors.push_back(
      {"patch_embed.proj.weight", {width, config.num_channels, config.temporal_patch_size, patch, patch}, weight});
  if (has_positions || config.output_norm) out.tensors.push_back({"patch_embed.proj.bias", {width}, zero});
  if (has_positions)
    out.tensors.push_back({config.position_cubic ? "embeddings.position_embedding.weight" : "pos_embed.weight",
                           {config.num_position_embeddings, width},
                           weight});
  if (config.position_cubic) norm("post_conv_layernorm");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("blocks.{}.", i);
    norm(layer + "norm1");
    norm(layer + "norm2");
    linear(layer + "attn.qkv", 3 * width, width);
    linear(layer + "attn.proj", width, width);
    if (config.qk_head_norm)
      for (const char* name : {"attn.q_norm.weight", "attn.k_norm.weight"})
        out.tensors.push_back({layer + name, {config.head_dim()}, one});
    if (config.rms_norm) {
      linear(layer + "mlp.gate_proj", mlp, width);
      linear(layer + "mlp.up_proj", mlp, width);
      linear(layer + "mlp.down_proj", width, mlp);
    } else {
      linear(layer + (has_positions ? "mlp.linear_fc1" : "mlp.fc1"), mlp, width);
      linear(layer + (has_positions ? "mlp.linear_fc2" : "mlp.fc2"), width, mlp);
    }
  }
  if (config.output_norm) norm("post_layernorm");
  return out;
}

} // namespace

EncoderFamily qwen2_vl_family() {
  return {.name = "qwen2_vl",
          .types = {{qwen2, "Qwen2VisionTransformerPretrainedModel"},
                    {qwen2_5, "Qwen2_5_VisionTransformerPretrainedModel"},
                    {qwen3, "Qwen3VLVisionModel"},
                    {qwen3_5, "Qwen3_5VisionModel"},
                    {glm_ocr, "GlmOcrVisionModel"},
                    {glm4v, "Glm4vVisionModel"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"mlp.gate_proj.weight", "mlp.up_proj.weight"}, {"mlp.gate_proj.bias", "mlp.up_proj.bias"}},
          .tokens_per_frame = vit_tokens_per_frame<false>};
}

} // namespace fvlm
