#include "model/decoder/gemma4/gemma4.h"

#include "model/flops.h"
#include "ops/gates.h"
#include "ops/pointwise.h"
#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fvlm::model {
namespace {

// Of layers without a window.
ops::Rotary global_rotary(const DecoderConfig& config, at::Device device) {
  const int64_t dim = config.global_head_dim;
  const std::vector<double> frequencies = rope_frequencies({config.rope_theta, config.rope_scaling}, dim);
  return {dim, config.rope_theta, at::tensor(frequencies, at::kDouble).to(device)};
}

} // namespace

Gemma4::Gemma4(const DecoderConfig& config, Parameters& parameters, const std::string& part) : config_(config) {
  const std::string stem = part + ".model.";
  embedding_ = parameters.weight(stem + "embed_tokens.weight");
  if (config.hidden_size_per_layer_input > 0) {
    table_ = parameters.weight(stem + "embed_tokens_per_layer.weight");
    table_projection_ = parameters.weight(stem + "per_layer_model_projection.weight");
    table_norm_ = parameters.weight(stem + "per_layer_projection_norm.weight");
  }
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) load_layer(i, parameters, stem);
  norm_ = parameters.weight(stem + "norm.weight");
  head_ = config.tie_word_embeddings ? embedding_ : parameters.weight(part + ".lm_head.weight");
}

void Gemma4::load_layer(int64_t index, Parameters& parameters, const std::string& stem) {
  const auto name = [&](const std::string& suffix) { return fmt::format("{}layers.{}.{}", stem, index, suffix); };
  const auto weight = [&](const char* module) { return parameters.weight(name(module) + ".weight"); };
  const auto linear = [&](const std::vector<const char*>& modules) {
    const auto all = [&](const char* suffix) {
      std::vector<std::string> full;
      for (const char* module : modules) full.push_back(name(module) + suffix);
      return parameters.fused(full);
    };
    return ops::Operations::Layer{all(".weight"), config_.qkv_bias ? all(".bias") : ops::Weight()};
  };
  const at::Device device = embedding_.value().device();
  Layer& layer = layers_.emplace_back();
  layer.kv_layer = static_cast<size_t>(config_.kv_layer(index));
  layer.is_read = false;
  const bool reads_own = config_.kv_layer(index) == index;
  if (!reads_own) layers_[layer.kv_layer].is_read = true;
  layer.in = linear(reads_own ? std::vector{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}
                              : std::vector{"self_attn.q_proj"});
  layer.out = linear({"self_attn.o_proj"});
  layer.up = parameters.fused({name("mlp.gate_proj.weight"), name("mlp.up_proj.weight")});
  layer.down = weight("mlp.down_proj");
  if (index > 0 && index + 1 < config_.num_hidden_layers) // the first and the last layer stay in 16 bits, as is common
    for (const ops::Weight* each : {&layer.in.weight, &layer.out.weight, &layer.up, &layer.down})
      for (ops::Parameter* part : each->parts()) part->allows_fp8 = true;
  layer.attention_norm = weight("input_layernorm");
  layer.attention_post_norm = weight("post_attention_layernorm");
  layer.mlp_norm = weight("pre_feedforward_layernorm");
  layer.mlp_post_norm = weight("post_feedforward_layernorm");
  layer.q_norm = weight("self_attn.q_norm");
  if (reads_own) layer.k_norm = weight("self_attn.k_norm");
  if (table_.defined()) {
    layer.gate = weight("per_layer_input_gate");
    layer.projection = weight("per_layer_projection");
    layer.own_norm = weight("post_per_layer_input_norm");
  }
  layer.factor = parameters.at(name("layer_scalar")).value;
  layer.attention = {config_.head_dim_of(index), true};
  layer.attention.score_factor = std::sqrt(static_cast<double>(layer.attention.head_dim)); // scores have no factor
  if (config_.has_window(index)) layer.attention.window = config_.sliding_window;
  layer.rotary = config_.has_window(index) ? ops::Rotary{config_.head_dim, *config_.local_rope_theta}
                                           : global_rotary(config_, device);
}

Value Gemma4::token_rows(Tape& tape, const ops::Sequence& sequence, at::ScalarType dtype) const {
  return table_.defined() ? ops::embed(tape, table_, {}, sequence, dtype, table_scale()) : Value();
}

Value Gemma4::normed(Tape& tape, Operations& ops, const Value& x, const ops::Weight& weight) const {
  return ops.rmsnorm(tape, x, {}, weight, config_.rms_norm_eps).y;
}

Value Gemma4::own_rows(Tape& tape, Operations& ops, const Value& x, const Value& of_tokens) const {
  if (!table_.defined()) return {};
  Value rows = ops::scale(tape, ops.linear(tape, x, table_projection_), 1 / std::sqrt(static_cast<double>(width())));
  rows = ops.rmsnorm_heads(tape, {rows, 0, config_.num_hidden_layers}, config_.hidden_size_per_layer_input, table_norm_,
                           config_.rms_norm_eps);
  if (of_tokens.defined()) return ops::scale(tape, ops::add(tape, rows, of_tokens), std::numbers::sqrt2 / 2);
  // Rows that are no tokens have what the first one has.
  const double scale = ops::rounded(table_scale(), ops.options().dtype);
  const at::Tensor first = table_.value().narrow(0, 0, 1).to(ops.options().dtype) * scale;
  return ops::scale(tape, ops::add(tape, rows, Value(first.expand_as(rows.data))), std::numbers::sqrt2 / 2);
}

Value Gemma4::own_rows_of(Tape& tape, Operations& ops, const Value& all, size_t layer) const {
  if (!all.defined()) return all;
  const int64_t columns = config_.hidden_size_per_layer_input;
  return ops.slice_columns(tape, all, static_cast<int64_t>(layer) * columns, columns);
}

Value Gemma4::queries(Tape& tape, Operations& ops, const Layer& layer, const Value& qkv,
                      const at::Tensor& positions) const {
  const int64_t heads = config_.num_attention_heads, dim = layer.attention.head_dim;
  const Value q = ops.rmsnorm_heads(tape, {qkv, 0, heads}, dim, layer.q_norm, config_.rms_norm_eps);
  return ops.rotate(tape, q, heads, dim, layer.rotary, positions);
}

Gemma4::KeysAndValues Gemma4::keys_and_values(Tape& tape, Operations& ops, const Layer& layer, const Value& qkv,
                                              const at::Tensor& positions) const {
  const int64_t heads = config_.num_attention_heads, kv = config_.num_key_value_heads, dim = layer.attention.head_dim;
  const Value k = ops.rmsnorm_heads(tape, {qkv, heads * dim, kv}, dim, layer.k_norm, config_.rms_norm_eps);
  return {ops.rotate(tape, k, kv, dim, layer.rotary, positions),
          ops.rmsnorm_heads(tape, {qkv, (heads + kv) * dim, kv}, dim, {}, config_.rms_norm_eps)};
}

template <class Attend>
Value Gemma4::run_layer(Tape& tape, Operations& ops, const Layer& layer, const Value& x, const Value& own,
                        at::Tensor* compensation, const Attend& attend) const {
  Value y = normed(tape, ops, x, layer.attention_norm);
  y = attend(ops.linear(tape, y, layer.in.weight, layer.in.bias));
  y = normed(tape, ops, ops.linear(tape, y, layer.out.weight, layer.out.bias), layer.attention_post_norm);
  auto [inner, sum] = ops.rmsnorm(tape, y, x, layer.mlp_norm, config_.rms_norm_eps, {}, compensation);
  inner = ops.geglu(tape, ops.linear(tape, inner, layer.up));
  inner = normed(tape, ops, ops.linear(tape, inner, layer.down), layer.mlp_post_norm);
  Value rows = ops::add(tape, inner, sum, compensation);
  if (own.defined()) {
    Value branch = ops.geglu(tape, ops.linear(tape, rows, layer.gate), own);
    branch = normed(tape, ops, ops.linear(tape, branch, layer.projection), layer.own_norm);
    rows = ops::add(tape, branch, rows, compensation);
  }
  return ops::scale_by(tape, rows, layer.factor, compensation);
}

Value Gemma4::forward(Tape& tape, Operations& ops, const Value& x, const Segments& segments,
                      const ops::SharedGradientPass&, bool compensated, const AddedRows& added) const {
  const Tape::LightCheckpointing lean(tape, recompute.light);
  const int64_t kv = config_.num_key_value_heads;
  const Value own = own_rows(tape, ops, x, added.of_tokens);
  std::vector<KeysAndValues> kept(layers_.size()); // of layers that are read
  Value rows = x;
  at::Tensor compensation;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const KeysAndValues& read = kept[layer.kv_layer];
    // In: the rows, the layer's own, the keys and values of another layer, and the compensation. Out: the rows, the
    // compensation, and the keys and values where another layer reads them.
    const auto block = [this, i, kv, &layer, &ops, segments,
                        compensated](Tape& inner, const std::vector<Value>& in) -> std::vector<Value> {
      KeysAndValues keys{in[2], in[3]};
      at::Tensor rounding = in[4].data;
      const Value y =
          run_layer(inner, ops, layer, in[0], in[1], compensated ? &rounding : nullptr, [&](const Value& qkv) {
            if (layer.kv_layer == i) keys = keys_and_values(inner, ops, layer, qkv, segments.positions);
            const Value q = queries(inner, ops, layer, qkv, segments.positions);
            return ops.attention(inner, {q, 0, config_.num_attention_heads}, {keys.k, 0, kv}, {keys.v, 0, kv}, segments,
                                 segments, layer.attention);
          });
      std::vector<Value> out{y, Value(rounding)};
      if (layer.is_read) out.insert(out.end(), {keys.k, keys.v});
      return out;
    };
    const std::vector<Value> in{rows, own_rows_of(tape, ops, own, i), read.k, read.v, Value(compensation)};
    const auto out = recompute.layer(static_cast<int64_t>(i)) ? ops::checkpointed(tape, in, block) : block(tape, in);
    rows = out[0];
    compensation = out[1].data;
    if (layer.is_read) kept[i] = {out[2], out[3]};
    if (i < added.by_layer.size()) rows = ops::add_to_rows(tape, rows, added.by_layer[i], added.places);
  }
  return normed(tape, ops, rows, norm_);
}

KvPages Gemma4::make_kv_pages(Operations& ops, int64_t pages, int64_t page_rows, int64_t) const {
  KvPages made{{}, page_rows, {}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool has_own = layers_[i].kv_layer == i;
    made.states.emplace_back();
    made.layers.push_back(
        has_own ? at::zeros({pages, config_.num_key_value_heads, page_rows, 2, layers_[i].attention.head_dim},
                            ops.tensor_options())
                : at::empty({pages, 0}, ops.tensor_options()));
  }
  return made;
}

at::Tensor Gemma4::forward(Operations& ops, const at::Tensor& x, KvPages& pages, const StagedRows& rows) const {
  Tape no_grad(Tape::Mode::forward_only);
  const auto added_layers = static_cast<size_t>(x.size(1) / width() - 1);
  const auto columns = [&](size_t group) { return x.narrow(1, static_cast<int64_t>(group) * width(), width()); };
  Value residual(columns(0).contiguous());
  const Value own = own_rows(no_grad, ops, residual, token_rows(no_grad, {rows.tokens, {}, {}}, ops.options().dtype));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const ops::PagedKeys keys{pages.keys(layer.kv_layer),
                              pages.values(layer.kv_layer),
                              rows.page_table,
                              rows.sequences,
                              rows.lengths,
                              rows.has_ranges(),
                              rows.first};
    const auto attend = [&](const Value& qkv) {
      const int64_t heads = config_.num_attention_heads;
      const Value q = queries(no_grad, ops, layer, qkv, rows.positions);
      if (layer.kv_layer != i) return Value(ops.paged_attention(q.data, heads, keys, layer.attention));
      const auto [k, v] = keys_and_values(no_grad, ops, layer, qkv, rows.positions);
      const Value all(at::concat({q.data, k.data, v.data}, 1));
      return Value(ops.append_and_attend(all, heads, keys, rows.positions, rows.places, rows.are_independent(),
                                         layer.attention));
    };
    residual = run_layer(no_grad, ops, layer, residual, own_rows_of(no_grad, ops, own, i), nullptr, attend);
    if (i < added_layers) residual = ops::add(no_grad, residual, Value(columns(i + 1)));
  }
  return normed(no_grad, ops, residual, norm_).data;
}

double Gemma4::flops(double rows, double pairs, bool trains, bool inputs) const {
  const int64_t own = config_.hidden_size_per_layer_input;
  double row = product_flops(width(), config_.num_hidden_layers * own), pair = 0;
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const int64_t dim = config_.head_dim_of(i), heads = config_.num_attention_heads * dim,
                  kv = config_.kv_layer(i) == i ? config_.num_key_value_heads * dim : 0;
    row += product_flops(width(), heads + 2 * kv) + product_flops(heads, width()) +
           3 * product_flops(width(), config_.mlp_width_of(i)) + 2 * product_flops(width(), own);
    pair += attention_pair_flops(heads);
  }
  return with_backward({rows * row, pairs * pair}, trains, inputs);
}

double Gemma4::head_flops(double labels, bool trains, bool inputs) const {
  return with_backward({product_flops(config_.hidden_size, config_.vocab_size) * labels, 0}, trains, inputs);
}

std::unique_ptr<Decoder> gemma4_decoder(const DecoderConfig& config, Parameters& parameters, const std::string& part) {
  return std::make_unique<Gemma4>(config, parameters, part);
}

} // namespace fvlm::model
