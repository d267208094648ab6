#include "model/decoder/llama/llama.h"

#include "model/flops.h"
#include "model/shared_weight_gradients.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

namespace fvlm::model {
namespace {

constexpr const char* stem = "decoder.model.";

std::string layer_name(int64_t index, const char* suffix) {
  return fmt::format("{}layers.{}.{}", stem, index, suffix);
}

} // namespace

Llama::Llama(const DecoderConfig& config, Parameters& parameters) : config_(config) {
  embedding_ = parameters.weight(std::string(stem) + "embed_tokens.weight");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const auto name = [i](const char* suffix) { return layer_name(i, suffix); };
    const auto one = [&](const char* suffix) { return parameters.weight(name(suffix)); };
    layers_.push_back({one("input_layernorm.weight"),
                       parameters.fused({name("self_attn.q_proj.weight"), name("self_attn.k_proj.weight"),
                                         name("self_attn.v_proj.weight")}),
                       one("self_attn.o_proj.weight"), one("post_attention_layernorm.weight"),
                       parameters.fused({name("mlp.gate_proj.weight"), name("mlp.up_proj.weight")}),
                       one("mlp.down_proj.weight")});
  }
  norm_ = parameters.weight(std::string(stem) + "norm.weight");
  head_ = config.tie_word_embeddings ? embedding_ : parameters.weight("decoder.lm_head.weight");
}

// The residual stream and the output of the last branch, which the next norm adds to it.
struct Llama::Stream {
  Value branch, residual;
  bool compensated;
  at::Tensor compensation; // rounding error of the residual

  Stream(const std::vector<Value>& parts, bool compensates)
      : branch(parts[0]), residual(parts.size() > 1 ? parts[1] : Value()), compensated(compensates),
        compensation(parts.size() > 2 ? parts[2].data : at::Tensor()) {}
  std::vector<Value> parts() const {
    std::vector<Value> all{branch};
    if (residual.defined()) all.push_back(residual);
    if (compensation.defined()) all.emplace_back(compensation);
    return all;
  }
};

Value Llama::normed(Tape& tape, Operations& ops, Stream& stream, const ops::Weight& weight,
                    const at::Tensor& into) const {
  auto [y, sum] = ops.rmsnorm(tape, stream.branch, stream.residual, weight, config_.rms_norm_eps, into,
                              stream.compensated ? &stream.compensation : nullptr);
  stream.residual = std::move(sum);
  return std::move(y);
}

template <class Attend>
void Llama::run_layer(Tape& tape, Operations& ops, const Layer& layer, Stream& stream, const Attend& attend,
                      const ops::SharedGradientPass& pass) const {
  const auto input = [&](const ops::Weight& weight) { return pass.input(weight, stream.branch.data.size(0)); };
  const Value before = normed(tape, ops, stream, layer.attention_norm, input(layer.qkv));
  const Value qkv = ops.linear(tape, before, layer.qkv, {}, pass);
  stream.branch = ops.linear(tape, attend(qkv, input(layer.out)), layer.out, {}, pass);
  const Value between = normed(tape, ops, stream, layer.mlp_norm, input(layer.gate_up));
  const Value inner = ops.swiglu(tape, ops.linear(tape, between, layer.gate_up, {}, pass), input(layer.down));
  stream.branch = ops.linear(tape, inner, layer.down, {}, pass);
}

Value Llama::forward(Tape& tape, Operations& ops, const Value& x, const Segments& segments,
                     const ops::SharedGradientPass& pass, bool compensated) const {
  const int64_t q = config_.num_attention_heads, kv = config_.num_key_value_heads, dim = config_.head_dim;
  const ops::AttentionShape shape{dim, true, {dim, config_.rope_theta}};
  Stream stream({x}, compensated);
  const Tape::LightCheckpointing lean(tape, recompute.light);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool recomputes = recompute.layer(static_cast<int64_t>(i));
    const auto block = [this, &ops, &layer = layers_[i], segments, shape, q, kv, dim, compensated,
                        pass = recomputes ? ops::SharedGradientPass()
                                          : pass](Tape& inner, const std::vector<Value>& in) -> std::vector<Value> {
      Stream own(in, compensated);
      const auto attend = [&](const Value& qkv, const at::Tensor& into) {
        return ops.attention(inner, {qkv, 0, q}, {qkv, q * dim, kv}, {qkv, (q + kv) * dim, kv}, segments, segments,
                             shape, into);
      };
      run_layer(inner, ops, layer, own, attend, pass);
      return own.parts();
    };
    const auto out = recomputes ? ops::checkpointed(tape, stream.parts(), block) : block(tape, stream.parts());
    stream = Stream(out, compensated);
  }
  return normed(tape, ops, stream, norm_);
}

KvCache Llama::make_kv_cache(Operations& ops, int64_t capacity) const {
  KvCache cache;
  for (size_t i = 0; i < layers_.size(); ++i)
    cache.layers.push_back(
        at::zeros({capacity, 2 * config_.num_key_value_heads * config_.head_dim}, ops.tensor_options()));
  return cache;
}

at::Tensor Llama::forward(Operations& ops, const at::Tensor& x, KvCache& cache) const {
  const int64_t q = config_.num_attention_heads, kv = config_.num_key_value_heads, dim = config_.head_dim,
                rows = x.size(0);
  const int64_t capacity = cache.layers.front().size(0), length = cache.length + rows;
  const auto index = at::TensorOptions().dtype(at::kInt);
  const auto segment = [&](int64_t end, int64_t longest) {
    return Segments{at::tensor({int64_t{0}, end}, index).to(x.device()), {}, longest};
  };
  const Segments of_q = segment(rows, rows), of_kv = segment(length, capacity);
  const at::Tensor positions = at::arange(cache.length, length, index.device(x.device()));
  Tape no_grad(Tape::Mode::forward_only);
  Stream stream({Value(x)}, false);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto attend = [&](const Value& qkv, const at::Tensor&) {
      const Value rotated = ops.rotate(no_grad, qkv, q + kv, dim, {dim, config_.rope_theta}, positions);
      cache.layers[i].narrow(0, cache.length, rows).copy_(rotated.data.narrow(1, q * dim, 2 * kv * dim));
      const Value keys_values(cache.layers[i]);
      return ops.attention(no_grad, {rotated, 0, q}, {keys_values, 0, kv}, {keys_values, kv * dim, kv}, of_q, of_kv,
                           {dim, true, {}});
    };
    run_layer(no_grad, ops, layers_[i], stream, attend);
  }
  cache.length = length;
  return normed(no_grad, ops, stream, norm_).data;
}

bool Llama::can_defer_gradients(int64_t rows, int64_t element) const {
  return model::can_defer_gradients(config_, rows, element);
}

double Llama::flops(double rows, double pairs, bool trains, bool inputs) const {
  const int64_t width = config_.hidden_size, heads = config_.num_attention_heads * config_.head_dim,
                kv = config_.num_key_value_heads * config_.head_dim;
  const auto layers = static_cast<double>(config_.num_hidden_layers);
  const double row = product_flops(width, heads + 2 * kv) + product_flops(heads, width) +
                     3 * product_flops(width, config_.intermediate_size);
  return with_backward({rows * layers * row, pairs * layers * attention_pair_flops(heads)}, trains, inputs);
}

double Llama::head_flops(double labels, bool trains, bool inputs) const {
  return with_backward({product_flops(config_.hidden_size, config_.vocab_size) * labels, 0}, trains, inputs);
}

std::unique_ptr<Decoder> llama_decoder(const DecoderConfig& config, Parameters& parameters) {
  return std::make_unique<Llama>(config, parameters);
}

} // namespace fvlm::model
