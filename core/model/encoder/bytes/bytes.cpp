// The byte encoder of LatentWire: a token for every byte of a text, bidirectional, with its norms behind the residuals.
#include "model/encoder/encoder.h"
#include "model/flops.h"
#include "model/weights/towers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <cmath>

namespace fvlm::model {
namespace {

// [rows, width]: sines in the even columns, cosines in the odd ones, with PyTorch's rounding.
at::Tensor sinusoids(int64_t rows, int64_t width) {
  const double step = -std::log(10000.0) / static_cast<double>(width);
  const at::Tensor frequencies = (at::arange(0, width, 2, at::kFloat) * step).exp(),
                   angles = at::arange(rows, at::kFloat).unsqueeze(1) * frequencies;
  at::Tensor table = at::empty({rows, width}, at::kFloat);
  table.unflatten(1, {-1, 2}).select(2, 0).copy_(angles.sin());
  table.unflatten(1, {-1, 2}).select(2, 1).copy_(angles.cos());
  return table;
}

struct Layer {
  Operations::Layer queries_keys_values, out, attention_norm, up, down, mlp_norm;
};

class ByteEncoder : public Encoder {
 public:
  ByteEncoder(const VisionConfig& config, Parameters& parameters)
      : config_(config), embedding_(parameters.weight("vision.byte_emb.weight")),
        positions_(sinusoids(config.max_bytes, config.hidden_size).to(embedding_.value().options())) {
    const auto linear = [&](const std::string& weight, const std::string& bias) -> Operations::Layer {
      return {parameters.weight("vision." + weight), parameters.weight("vision." + bias)};
    };
    const auto module = [&](const std::string& stem) { return linear(stem + ".weight", stem + ".bias"); };
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      const std::string stem = fmt::format("encoder.layers.{}.", i);
      layers_.push_back({linear(stem + "self_attn.in_proj_weight", stem + "self_attn.in_proj_bias"),
                         module(stem + "self_attn.out_proj"), module(stem + "norm1"), module(stem + "linear1"),
                         module(stem + "linear2"), module(stem + "norm2")});
    }
    output_norm_ = module("ln");
  }

  int64_t width() const override { return config_.hidden_size; }
  int64_t tokens_per_frame(int64_t, int64_t) const override { return config_.max_bytes; }
  bool reads_bytes() const override { return true; }
  bool trains() const override { return embedding_.requires_grad(); }

  Value forward(Tape& tape, Operations& ops, const at::Tensor& bytes, const Segments& texts,
                const PackMaps&) const override {
    const Tape::LightCheckpointing lean(tape, recompute.light);
    Value x = embed(tape, bytes, texts.positions);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const auto block = [this, &ops, &layer = layers_[i], texts](Tape& inner, const std::vector<Value>& in) {
        return std::vector<Value>{pass(inner, ops, layer, in[0], texts)};
      };
      x = (recompute.layer(static_cast<int64_t>(i)) ? ops::checkpointed(tape, {x}, block) : block(tape, {x}))[0];
    }
    return norm(tape, ops, x, output_norm_);
  }

  double flops(int64_t tokens, bool trains) const override {
    const int64_t width = config_.hidden_size;
    const auto rows = static_cast<double>(tokens), layers = static_cast<double>(layers_.size());
    const ForwardFlops row{4 * product_flops(width, width) + 2 * product_flops(width, config_.intermediate_size),
                           attention_pair_flops(width) * rows};
    return with_backward(row * (rows * layers), trains, trains);
  }

 private:
  Value embed(Tape& tape, const at::Tensor& bytes, const at::Tensor& positions) const {
    const at::Tensor& table = embedding_.value();
    Value y(table.index_select(0, bytes) + positions_.index_select(0, positions), tape.records(embedding_));
    if (y.requires_grad())
      tape.push([weight = embedding_, bytes, out = y.gradient] {
        const at::Tensor d = out->take();
        if (!d.defined()) return;
        // Sums in a fixed order, unlike an index_add on a GPU.
        const auto options = weight.gradient().options();
        const at::Tensor one_hot = at::eye(weight.value().size(0), options).index_select(0, bytes);
        weight.add_gradient(at::mm(one_hot.t(), d.to(options.dtype())));
      });
    return y;
  }

  Value norm(Tape& tape, Operations& ops, const Value& x, const Operations::Layer& layer) const {
    return ops.layernorm(tape, x, layer.weight, layer.bias, config_.layer_norm_eps);
  }

  Value pass(Tape& tape, Operations& ops, const Layer& layer, const Value& x, const Segments& texts) const {
    const int64_t heads = config_.num_attention_heads, width = config_.hidden_size;
    const Value qkv = ops.linear(tape, x, layer.queries_keys_values, {});
    const Value read = ops.attention(tape, {qkv, 0, heads}, {qkv, width, heads}, {qkv, 2 * width, heads}, texts, texts,
                                     {config_.head_dim()});
    const Value attended = norm(tape, ops, ops.linear(tape, read, layer.out, x), layer.attention_norm);
    return norm(tape, ops, ops.gelu_mlp(tape, attended, layer.up, layer.down, attended), layer.mlp_norm);
  }

  VisionConfig config_;
  ops::Weight embedding_;
  at::Tensor positions_;
  std::vector<Layer> layers_;
  Operations::Layer output_norm_;
};

} // namespace

std::unique_ptr<Encoder> bytes_encoder(const VisionConfig& config, Parameters& parameters) {
  return std::make_unique<ByteEncoder>(config, parameters);
}

} // namespace fvlm::model
