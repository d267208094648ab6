// The vision encoder of Gemma 4 (transformers' Gemma4VisionModel) without its pooler, which is the connector's work.
#include "model/encoder/axial_rope.h"
#include "model/weights/vit.h"

#include <fmt/format.h>

#include <limits>

namespace fvlm {
namespace {

void check(ConfigReader& reader, const VisionConfig& config) {
  reader.refuse_unless(config.hidden_act == "gelu_pytorch_tanh", "hidden_activation", "only gelu_pytorch_tanh is");
  reader.refuse_unless(reader.number("attention_dropout", 0, 0, 1) == 0, "attention_dropout",
                       "towers are trained without dropout; set it to 0");
  reader.refuse_unless(!reader.flag("attention_bias", false), "attention_bias", "its linears have no biases");
  reader.refuse_unless(!reader.flag("standardize", false), "standardize",
                       "it is done behind the pooler, by the connector of a whole model: import that");
  check_axial_rope(reader, config);
  const int64_t heads = config.num_attention_heads;
  const int64_t keys = reader.whole("num_key_value_heads", heads, 1, most_heads);
  reader.refuse_unless(keys == heads, "num_key_value_heads", fmt::format("as many as queries have is: {}", heads));
  const int64_t head_dim = reader.whole_or_null("head_dim", most_features).value_or(config.head_dim());
  if (head_dim * heads != config.hidden_size)
    reader.problems().add("'head_dim' = {} is not 'hidden_size' = {} divided by the {} heads", head_dim,
                          config.hidden_size, heads);
}

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  constexpr int64_t most_positions = 1 << 20;
  VisionConfig out;
  out.model_type = model_type;
  out.hidden_size = reader.whole("hidden_size", 768, 1, most_features);
  out.intermediate_size = reader.whole("intermediate_size", 3072, 1, most_features);
  out.num_hidden_layers = reader.whole("num_hidden_layers", 16, 1, most_layers);
  out.num_attention_heads = reader.whole("num_attention_heads", 12, 1, most_heads);
  out.hidden_act = reader.text("hidden_activation", "gelu_pytorch_tanh");
  out.layer_norm_eps = reader.number("rms_norm_eps", 1e-6, 0, 1);
  out.patch_size = reader.square("patch_size", 16, 1, 1 << 14);
  out.spatial_merge_size = reader.whole("pooling_kernel_size", 3, 1, 64);
  out.position_embedding_size = reader.whole("position_embedding_size", 10240, 1, most_positions);
  out.use_clipped_linears = reader.flag("use_clipped_linears", false);
  out.initializer_range = reader.number("initializer_range", 0.02, 0, 1e6);
  out.rope_theta = 100;
  if (const nlohmann::json* rope = reader.object("rope_parameters"))
    if (const auto theta = rope->find("rope_theta"); theta != rope->end() && theta->is_number())
      out.rope_theta = *theta;
  out.num_channels = 3;
  out.temporal_patch_size = 1;
  out.rms_norm = true;
  out.attention_bias = false;
  out.image_size = out.patch_size * out.spatial_merge_size;
  check(reader, out);
  return out;
}

nlohmann::json write(const VisionConfig& config) {
  return {{"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_attention_heads},
          {"head_dim", config.head_dim()},
          {"hidden_activation", config.hidden_act},
          {"rms_norm_eps", config.layer_norm_eps},
          {"patch_size", config.patch_size},
          {"pooling_kernel_size", config.spatial_merge_size},
          {"position_embedding_size", config.position_embedding_size},
          {"use_clipped_linears", config.use_clipped_linears},
          {"rope_parameters", {{"rope_type", "axial"}, {"rope_theta", config.rope_theta}}},
          {"initializer_range", config.initializer_range}};
}

// Initialized as transformers does it.
WeightLayout layout(const VisionConfig& config) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size, patch = config.patch_size;
  const Initializer normal{Initializer::Kind::normal, config.initializer_range}, one{Initializer::Kind::constant, 1};
  WeightLayout out;
  out.tensors = {{"patch_embedder.input_proj.weight", {width, config.num_channels * patch * patch}, normal},
                 {"patch_embedder.position_embedding_table", {2, config.position_embedding_size, width}, one}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("encoder.layers.{}.", i);
    const auto linear = [&](const char* name, int64_t rows, int64_t columns) {
      out.tensors.push_back({fmt::format("{}{}.linear.weight", layer, name), {rows, columns}, normal});
      for (size_t bound = 0; config.use_clipped_linears && bound < linear_bounds.size(); ++bound) {
        constexpr double infinity = std::numeric_limits<double>::infinity();
        const Initializer none{Initializer::Kind::constant, bound % 2 ? infinity : -infinity};
        out.tensors.push_back({fmt::format("{}{}.{}", layer, name, linear_bounds[bound]), {}, none});
        out.tensors.back().is_fixed = true;
      }
    };
    const auto norm = [&](const char* name, int64_t length) {
      out.tensors.push_back({fmt::format("{}{}.weight", layer, name), {length}, one});
    };
    norm("input_layernorm", width);
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}) linear(name, width, width);
    for (const char* name : {"self_attn.q_norm", "self_attn.k_norm"}) norm(name, config.head_dim());
    linear("self_attn.o_proj", width, width);
    norm("post_attention_layernorm", width);
    norm("pre_feedforward_layernorm", width);
    for (const char* name : {"mlp.gate_proj", "mlp.up_proj"}) linear(name, mlp, width);
    linear("mlp.down_proj", width, mlp);
    norm("post_feedforward_layernorm", width);
  }
  return out;
}

} // namespace

EncoderFamily gemma4_vision_family() {
  return {.name = "gemma4_vision",
          .types = {{"gemma4_vision", "Gemma4VisionModel"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"self_attn.q_proj.linear.weight", "self_attn.k_proj.linear.weight",
                             "self_attn.v_proj.linear.weight"},
                            {"mlp.gate_proj.linear.weight", "mlp.up_proj.linear.weight"}},
          .tokens_per_frame = vit_tokens_per_frame<false>};
}

} // namespace fvlm
