// The byte encoder of LatentWire: bytes with sinusoidal positions, and PyTorch's TransformerEncoderLayer behind them.
#include "model/weights/model_family.h"

#include <fmt/format.h>

#include <cmath>

namespace fvlm {
namespace {

constexpr int64_t byte_values = 256;

VisionConfig read(ConfigReader& reader, const std::string& model_type) {
  VisionConfig out;
  out.model_type = model_type;
  out.hidden_size = reader.whole("hidden_size", 256, 1, most_features);
  out.num_hidden_layers = reader.whole("num_hidden_layers", 6, 1, most_layers);
  out.num_attention_heads = reader.whole("num_attention_heads", 8, 1, most_heads);
  out.intermediate_size = reader.whole("intermediate_size", 1024, 1, most_features);
  out.max_bytes = reader.whole("max_bytes", 512, 1, 1 << 20);
  out.layer_norm_eps = reader.number("layer_norm_eps", 1e-5, 0, 1);
  if (out.hidden_size % out.num_attention_heads)
    reader.problems().add("'num_attention_heads' = {} heads do not share 'hidden_size' = {} evenly",
                          out.num_attention_heads, out.hidden_size);
  if (out.hidden_size % 2)
    reader.problems().add("'hidden_size' = {} is odd, and positions are pairs of a sine and a cosine", out.hidden_size);
  return out;
}

nlohmann::json write(const VisionConfig& config) {
  return {{"hidden_size", config.hidden_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"intermediate_size", config.intermediate_size},
          {"max_bytes", config.max_bytes},
          {"layer_norm_eps", config.layer_norm_eps}};
}

// PyTorch's names and initial values.
WeightLayout layout(const VisionConfig& config) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size;
  const Initializer zero, one{Initializer::Kind::constant, 1}, normal{Initializer::Kind::normal, 1};
  const auto uniform = [](double bound) { return Initializer{Initializer::Kind::uniform, bound}; };
  const auto by_inputs = [&](int64_t inputs) { return uniform(1 / std::sqrt(static_cast<double>(inputs))); };
  WeightLayout out;
  const auto add = [&](std::string name, std::vector<int64_t> shape, const Initializer& fill) {
    out.tensors.push_back({std::move(name), std::move(shape), fill});
  };
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {width}, one);
    add(name + ".bias", {width}, zero);
  };
  add("byte_emb.weight", {byte_values, width}, normal);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("encoder.layers.{}.", i);
    add(layer + "self_attn.in_proj_weight", {3 * width, width}, uniform(std::sqrt(1.5 / static_cast<double>(width))));
    add(layer + "self_attn.in_proj_bias", {3 * width}, zero);
    add(layer + "self_attn.out_proj.weight", {width, width}, by_inputs(width));
    add(layer + "self_attn.out_proj.bias", {width}, zero);
    add(layer + "linear1.weight", {mlp, width}, by_inputs(width));
    add(layer + "linear1.bias", {mlp}, by_inputs(width));
    add(layer + "linear2.weight", {width, mlp}, by_inputs(mlp));
    add(layer + "linear2.bias", {width}, by_inputs(mlp));
    norm(layer + "norm1");
    norm(layer + "norm2");
  }
  norm("ln");
  return out;
}

} // namespace

EncoderFamily bytes_family() {
  return {.name = "bytes",
          .types = {{"bytes", "ByteEncoder"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {},
          .tokens_per_frame = [](const VisionConfig& config, int64_t, int64_t) { return config.max_bytes; }};
}

} // namespace fvlm
