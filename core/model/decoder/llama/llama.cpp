#include "model/decoder/llama/llama.h"

#include "model/decoder/llama/config.h"
#include "model/flops.h"
#include "model/shared_weight_gradients.h"
#include "ops/gates.h"
#include "ops/pointwise.h"
#include "ops/rows.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>
#include <optional>

namespace fvlm::model {
namespace {

// Which axis each pair is rotated by. Interleaved, height and width have every third pair, as many as their sections
// say, and time all others.
std::vector<int64_t> axes_of_pairs(const DecoderConfig& config) {
  const std::vector<int64_t>& section = config.mrope_section;
  const int64_t pairs = config.rotary_dim() / 2, axes = std::ssize(section);
  std::vector<int64_t> of_pairs;
  if (!config.mrope_interleaved)
    for (int64_t axis = 0; axis < axes; ++axis)
      of_pairs.insert(of_pairs.end(), static_cast<size_t>(section[static_cast<size_t>(axis)]), axis);
  else
    for (int64_t pair = 0; pair < pairs; ++pair)
      of_pairs.push_back(pair / axes < section[static_cast<size_t>(pair % axes)] ? pair % axes : 0);
  return of_pairs;
}

// Of each axis, those of its own pairs, and 0 for all others.
at::Tensor frequencies_by_axis(const at::Tensor& frequencies, const DecoderConfig& config) {
  at::Tensor axes = at::zeros({std::ssize(config.mrope_section), frequencies.size(0)}, frequencies.options());
  int64_t pair = 0;
  for (const int64_t axis : axes_of_pairs(config)) {
    axes[axis][pair].copy_(frequencies[pair]);
    ++pair;
  }
  return axes;
}

// Which axis each feature of a head is rotated by, whose section counts half of its features: float64 [axes, head_dim].
at::Tensor frequencies_of_features(const DecoderConfig& config) {
  const std::vector<double> of_pairs = rope_frequencies({config.rope_theta, config.rope_scaling}, config.head_dim);
  const std::vector<int64_t> section =
      config.has_row_axes() ? config.mrope_section : std::vector<int64_t>{config.head_dim / 2};
  at::Tensor all = at::zeros({std::ssize(section), config.head_dim}, at::kDouble);
  const at::Tensor pairs = at::tensor(of_pairs, at::kDouble), features = at::concat({pairs, pairs});
  int64_t first = 0;
  for (int64_t axis = 0; axis < std::ssize(section); ++axis) {
    const int64_t count = 2 * section[static_cast<size_t>(axis)];
    all[axis].narrow(0, first, count).copy_(features.narrow(0, first, count));
    first += count;
  }
  return all;
}

// Of layers without rotary positions, with those of the config, and with those of a sliding window's.
enum class Positions { none, rotary, local };
ops::AttentionShape attention_shape(const DecoderConfig& config, at::Device device, Positions positions) {
  ops::AttentionShape shape{config.head_dim, true};
  if (config.attention_multiplier != 0)
    shape.score_factor = config.attention_multiplier * std::sqrt(static_cast<double>(config.head_dim));
  shape.softcap = config.attn_logit_softcapping;
  if (positions == Positions::none) return shape;
  if (positions == Positions::local) {
    shape.rotary = {config.head_dim, *config.local_rope_theta};
    return shape;
  }
  shape.rotary = {config.rotary_dim(), config.rope_theta, {}, config.rope_reversed};
  const bool is_scaled = config.rope_scaling.type != RopeScaling::Type::none;
  if (!is_scaled && !config.has_row_axes()) return shape;
  const at::Tensor frequencies =
      at::tensor(rope_frequencies({config.rope_theta, config.rope_scaling}, config.rotary_dim()), at::kDouble);
  if (config.has_row_axes()) shape.rotary.axes = frequencies_by_axis(frequencies, config).to(device);
  if (!is_scaled) return shape;
  shape.rotary.frequencies = frequencies.to(device);
  shape.score_factor *= config.rope_scaling.attention_factor * config.rope_scaling.attention_factor;
  return shape;
}

} // namespace

Llama::Llama(const DecoderConfig& config, Parameters& parameters, const std::string& part)
    : config_(config),
      residual_epsilon_(config.rms_norm_eps / (config.residual_multiplier * config.residual_multiplier)) {
  const std::string stem = part + ".model.";
  const llama::TensorNames names = llama::names_of(config);
  const auto layer_name = [&](int64_t index, const char* suffix) {
    return fmt::format("{}layers.{}.{}", stem, index, suffix);
  };
  embedding_ = parameters.weight(stem + "embed_tokens.weight");
  const auto norm = [&](const std::string& name) {
    return config.norm_weights ? parameters.weight(name + ".weight") : ops::Weight();
  };
  // One layer of the linears that one product reads together.
  const auto linear = [&](int64_t layer, std::vector<const char*> linears, bool has_bias) {
    const auto all = [&](const char* suffix) {
      std::vector<std::string> full;
      full.reserve(linears.size());
      for (const char* name : linears) full.push_back(layer_name(layer, name) + suffix);
      return parameters.fused(full);
    };
    return ops::Operations::Layer{all(".weight"), has_bias ? all(".bias") : ops::Weight()};
  };
  const at::Device device = embedding_.value().device();
  const ops::AttentionShape without = attention_shape(config, device, Positions::none),
                            rotary =
                                config.norms_rotated ? without : attention_shape(config, device, Positions::rotary);
  if (config.norms_rotated) feature_frequencies_ = frequencies_of_features(config).to(device);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    Layer& layer = layers_.emplace_back();
    layer.attention = config.has_rope(i) ? rotary : without;
    if (config.has_window(i)) {
      if (config.local_rope_theta) layer.attention = attention_shape(config, device, Positions::local);
      layer.attention.window = config.sliding_window;
    }
    if (config.has_convolution(i)) {
      layer.in = linear(i, {"conv.in_proj"}, config.conv_bias);
      layer.out = linear(i, {"conv.out_proj"}, config.conv_bias);
      layer.taps.weight = parameters.weight(layer_name(i, "conv.conv.weight"));
      if (config.conv_bias) layer.taps.bias = parameters.weight(layer_name(i, "conv.conv.bias"));
    } else if (config.has_delta_rule(i)) {
      layer.in = linear(i, {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z"}, false);
      layer.gates = linear(i, {"linear_attn.in_proj_b", "linear_attn.in_proj_a"}, false);
      layer.out = linear(i, {"linear_attn.out_proj"}, false);
      layer.delta.emplace(config, [&](const char* name) { return parameters.weight(layer_name(i, name)); });
    } else {
      layer.in = linear(i, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, config.qkv_bias);
      if (config.head_gates) layer.gates = linear(i, {"self_attn.gate_proj"}, false);
      layer.out = linear(i, {names.out}, config.out_bias);
    }
    if (config.has_experts(i)) {
      layer.experts.emplace(config, parameters, layer_name(i, ""));
    } else {
      layer.up = config.gated_mlp && !config.fused_gate ? linear(i, {names.gate, names.up}, config.mlp_bias)
                                                        : linear(i, {names.up}, config.mlp_bias);
      layer.down = linear(i, {names.down}, config.mlp_bias);
    }
    if (i > 0 && i + 1 < config.num_hidden_layers) // the first and the last layer stay in 16 bits, as is common
      for (const auto* each : {&layer.in, &layer.out, &layer.up, &layer.down})
        for (ops::Parameter* part : each->weight.parts()) part->allows_fp8 = true;
    if (config.pre_norms) {
      layer.attention_norm = norm(layer_name(i, names.attention_norm));
      layer.mlp_norm = norm(layer_name(i, names.mlp_norm));
    }
    if (config.post_norms) {
      layer.attention_post_norm = norm(layer_name(i, names.attention_post_norm));
      layer.mlp_post_norm = norm(layer_name(i, names.mlp_post_norm));
    }
    if ((!config.qk_norm && !config.qk_row_norm) || layer.convolves() || layer.delta) continue;
    layer.q_norm = norm(layer_name(i, names.q_norm));
    layer.k_norm = norm(layer_name(i, names.k_norm));
  }
  norm_ = norm(stem + names.final_norm);
  head_ = config.tie_word_embeddings ? embedding_ : parameters.weight(part + ".lm_head.weight");
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
  auto [y, sum] = ops.rmsnorm(tape, stream.branch, stream.residual, factor_of(weight), residual_epsilon_, into,
                              stream.compensated ? &stream.compensation : nullptr);
  stream.residual = std::move(sum);
  stream.branch = {}; // it is part of the sum
  return std::move(y);
}

Value Llama::branch_input(Tape& tape, Operations& ops, Stream& stream, const ops::Weight& norm,
                          const at::Tensor& into) const {
  if (config_.pre_norms) return normed(tape, ops, stream, norm, into);
  stream.residual = stream.residual.defined() ? ops::add(tape, stream.branch, stream.residual,
                                                         stream.compensated ? &stream.compensation : nullptr)
                                              : stream.branch;
  stream.branch = {};
  return stream.residual;
}

Value Llama::branch_output(Tape& tape, Operations& ops, Value rows, const ops::Weight& norm) const {
  if (!config_.post_norms) return rows;
  return ops.rmsnorm(tape, rows, {}, factor_of(norm), config_.rms_norm_eps).y;
}

Value Llama::QueryKeyValue::adjacent(int64_t head_dim) const {
  const auto columns = [head_dim](const ops::Heads& heads) {
    return heads.value.data.narrow(1, heads.column, heads.count * head_dim);
  };
  return Value(at::concat({columns(q), columns(k), columns(v)}, 1));
}

at::Tensor Llama::query_factors(const at::Tensor& positions, int64_t bound, const at::TensorOptions& options) const {
  const RopeScaling& scaling = config_.rope_scaling;
  if (!scaling.llama_4_scaling_beta || bound <= scaling.original_max_position_embeddings) return {};
  const at::Tensor periods =
      positions.to(at::kFloat).div_(static_cast<double>(scaling.original_max_position_embeddings)).floor_();
  return periods.log1p_().mul_(*scaling.llama_4_scaling_beta).add_(1).unsqueeze(1).to(options);
}

// Before their rotation, which is linear.
Value Llama::scaled_queries(Tape& tape, const Value& qkv, const at::Tensor& factors) const {
  if (!factors.defined()) return qkv;
  return ops::scale_columns(tape, qkv, config_.num_attention_heads * config_.head_dim, factors);
}

Llama::GatedRows Llama::without_gates(Tape& tape, const Value& qkv, const Value& gates) const {
  if (!config_.gated_attention) return {qkv, gates};
  auto [rows, of_features] = ops::split_gates(tape, qkv, config_.num_attention_heads, config_.head_dim);
  return {std::move(rows), std::move(of_features)};
}

Value Llama::gated(Tape& tape, const Value& attended, const Value& gates) {
  return gates.defined() ? ops::gated_by_sigmoid(tape, attended, gates) : attended;
}

ops::FeatureAngles Llama::angles_at(const at::Tensor& positions, const at::TensorOptions& options) const {
  if (!config_.norms_rotated) return {};
  return ops::feature_angles(positions, feature_frequencies_, config_.rope_scaling.attention_factor,
                             c10::typeMetaToScalarType(options.dtype()));
}

Llama::QueryKeyValue Llama::heads_of(Tape& tape, Operations& ops, const Layer& layer, const Value& qkv,
                                     const ops::FeatureAngles& angles) const {
  const int64_t q = config_.num_attention_heads, kv = config_.num_key_value_heads, dim = config_.head_dim;
  QueryKeyValue heads{{qkv, 0, q}, {qkv, q * dim, kv}, {qkv, (q + kv) * dim, kv}};
  if (angles.cos.defined()) {
    const Value rotated = ops::rotate_features(tape, qkv, q + kv, dim, angles);
    heads.q = {rotated, 0, q};
    heads.k = {rotated, q * dim, kv};
  }
  if (config_.qk_row_norm) {
    heads.q = {ops.rmsnorm_heads(tape, {qkv, 0, 1}, q * dim, layer.q_norm, config_.rms_norm_eps), 0, q};
    heads.k = {ops.rmsnorm_heads(tape, {qkv, q * dim, 1}, kv * dim, layer.k_norm, config_.rms_norm_eps), 0, kv};
  }
  if (!config_.qk_norm) return heads;
  if (!config_.norm_weights) { // one norm of both, which are adjacent
    const Value both = ops.rmsnorm_heads(tape, {qkv, 0, q + kv}, dim, {}, config_.rms_norm_eps);
    heads.q = {both, 0, q};
    heads.k = {both, q * dim, kv};
    return heads;
  }
  heads.q = {ops.rmsnorm_heads(tape, heads.q, dim, factor_of(layer.q_norm), config_.rms_norm_eps), 0, q};
  heads.k = {ops.rmsnorm_heads(tape, heads.k, dim, factor_of(layer.k_norm), config_.rms_norm_eps), 0, kv};
  return heads;
}

// Where the input of a weight's linear should be computed, see SharedGradientPass::input() and
// Operations::input_memory().
static at::Tensor input_of(const ops::Weight& weight, int64_t rows, const ops::SharedGradientPass& pass) {
  if (!weight.defined()) return {}; // of experts
  const at::Tensor shared = pass.input(weight, rows);
  return shared.defined() ? shared : Operations::input_memory(weight, rows);
}

Value Llama::activated(Tape& tape, Operations& ops, const Value& up) const {
  return config_.gelu_gate ? ops.geglu(tape, up) : ops::relu_squared(tape, up);
}

Value Llama::mlp(Tape& tape, Operations& ops, const Layer& layer, Value x, const ops::SharedGradientPass& pass) const {
  if (layer.experts) return layer.experts->forward(tape, ops, x);
  if (has_swiglu()) {
    const at::Tensor into = input_of(layer.down.weight, x.data.size(0), pass);
    return ops.swiglu_mlp(tape, std::move(x), layer.up, layer.down, pass, into);
  }
  const Value up = ops.linear(tape, x, layer.up.weight, layer.up.bias, pass);
  return ops.linear(tape, activated(tape, ops, up), layer.down.weight, layer.down.bias, pass);
}

template <class Mix>
void Llama::run_layer(Tape& tape, Operations& ops, const Layer& layer, Stream& stream, const Mix& mix,
                      const ops::SharedGradientPass& pass) const {
  const int64_t rows = stream.branch.data.size(0);
  const auto input = [&](const ops::Weight& weight) { return input_of(weight, rows, pass); };
  // One variable, so that what the tape does not keep is freed before the next operation but one.
  Value x = branch_input(tape, ops, stream, layer.attention_norm, input(layer.in.weight));
  Value gates;
  if (layer.gates.weight.defined()) gates = ops.linear(tape, x, layer.gates.weight, layer.gates.bias, pass);
  x = ops.linear(tape, x, layer.in.weight, layer.in.bias, pass);
  x = mix(x, gates, input(layer.out.weight));
  x = ops.linear(tape, x, layer.out.weight, layer.out.bias, pass);
  stream.branch = branch_output(tape, ops, std::move(x), layer.attention_post_norm);
  x = branch_input(tape, ops, stream, layer.mlp_norm, input(layer.up.weight));
  stream.branch = branch_output(tape, ops, mlp(tape, ops, layer, std::move(x), pass), layer.mlp_post_norm);
}

Value Llama::entry(Tape& tape, Operations& ops, const Value& x) const {
  const double factor = config_.embedding_multiplier / config_.residual_multiplier;
  const Value rows = config_.embedding_norm ? ops.rmsnorm(tape, x, {}, {}, config_.rms_norm_eps).y : x;
  return factor == 1 ? rows : ops::scale(tape, rows, factor);
}

Value Llama::as_residual(Tape& tape, const Value& added) const {
  return config_.residual_multiplier == 1 ? added : ops::scale(tape, added, 1 / config_.residual_multiplier);
}

Value Llama::forward(Tape& tape, Operations& ops, const Value& x, const Segments& segments,
                     const ops::SharedGradientPass& pass, bool compensated, const AddedRows& added) const {
  Stream stream({entry(tape, ops, x)}, compensated);
  const Tape::LightCheckpointing lean(tape, recompute.light);
  // The ranks of a context have rows of any position.
  const int64_t bound = segments.ring.defined() ? config_.max_position_embeddings : segments.max_length;
  const at::Tensor factors = query_factors(segments.positions, bound, ops.tensor_options());
  const ops::FeatureAngles angles = angles_at(segments.positions, ops.tensor_options());
  at::Tensor within;
  if (config_.convolutions() > 0)
    within =
        ops::rows_within_segments(segments.cu_seqlens, x.data.size(0), config_.conv_taps - 1, ops.tensor_options());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool recomputes = recompute.layer(static_cast<int64_t>(i));
    const auto block = [this, &ops, &layer = layers_[i], segments, compensated, factors, angles, within,
                        pass = recomputes ? ops::SharedGradientPass()
                                          : pass](Tape& inner, const std::vector<Value>& in) -> std::vector<Value> {
      Stream own(in, compensated);
      const auto mix = [&](const Value& rows, const Value& gates, const at::Tensor& into) {
        if (layer.convolves()) return ops::gated_convolution(inner, rows, layer.taps, within);
        if (layer.delta) return layer.delta->mix(inner, ops, rows, gates, segments);
        const GatedRows parts = without_gates(inner, scaled_queries(inner, rows, factors), gates);
        const QueryKeyValue heads = heads_of(inner, ops, layer, parts.rows, angles);
        const at::Tensor& result = parts.gates.defined() ? at::Tensor() : into;
        return gated(inner,
                     ops.attention(inner, heads.q, heads.k, heads.v, segments, segments, layer.attention, result),
                     parts.gates);
      };
      run_layer(inner, ops, layer, own, mix, pass);
      return own.parts();
    };
    const auto out = recomputes ? ops::checkpointed(tape, stream.parts(), block) : block(tape, stream.parts());
    stream = Stream(out, compensated);
    if (i < added.by_layer.size())
      stream.branch = ops::add_to_rows(tape, stream.branch, as_residual(tape, added.by_layer[i]), added.places);
  }
  return normed(tape, ops, stream, norm_);
}

KvPages Llama::make_kv_pages(Operations& ops, int64_t pages, int64_t page_rows, int64_t slots) const {
  KvPages made{{}, page_rows, {}};
  for (const Layer& layer : layers_) {
    made.states.push_back(layer.delta ? layer.delta->make_states(slots, ops.tensor_options())
                                      : std::vector<at::Tensor>());
    if (layer.delta)
      made.layers.push_back(at::empty({pages, 0}, ops.tensor_options()));
    else if (layer.convolves())
      made.layers.push_back(at::zeros({pages, page_rows, width()}, ops.tensor_options()));
    else
      made.layers.push_back(
          at::zeros({pages, config_.num_key_value_heads, page_rows, 2, config_.head_dim}, ops.tensor_options()));
  }
  return made;
}

// Unlike the pass above it adds each branch to the residual where the branch ends, so that a kernel for few rows does
// it along with the product.
at::Tensor Llama::forward(Operations& ops, const at::Tensor& x, KvPages& pages, const StagedRows& rows) const {
  Tape no_grad(Tape::Mode::forward_only);
  const auto added_layers = static_cast<size_t>(x.size(1) / width() - 1);
  const auto columns = [&](size_t group) { return x.narrow(1, static_cast<int64_t>(group) * width(), width()); };
  const auto with_added = [&](const Value& sum, size_t layer) {
    if (layer >= added_layers) return sum;
    return ops::add(no_grad, sum, as_residual(no_grad, Value(columns(layer + 1))));
  };
  Value residual = entry(no_grad, ops, Value(columns(0).contiguous()));
  const at::Tensor factors =
      query_factors(rows.positions, rows.page_table.size(1) * pages.page_rows, ops.tensor_options());
  const ops::FeatureAngles angles = angles_at(rows.positions, ops.tensor_options());
  std::optional<ops::EarlierRows> earlier;
  if (config_.convolutions() > 0)
    earlier.emplace(rows.indices(), rows.sequences, rows.page_table, pages.page_rows, config_.conv_taps - 1);
  Stream stream({residual}, false); // of layers with post_norms, which are computed as in the pass above
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const auto attend = [&](const Value& qkv, const Value& gates, const ops::Operations::HeadNorms* norms) {
      const ops::PagedKeys keys{pages.keys(i), pages.values(i),   rows.page_table, rows.sequences,
                                rows.lengths,  rows.has_ranges(), rows.first};
      const GatedRows parts = without_gates(no_grad, scaled_queries(no_grad, qkv, factors), gates);
      const Value attended(ops.append_and_attend(parts.rows, config_.num_attention_heads, keys, rows.positions,
                                                 rows.places, rows.are_independent(), layer.attention, norms));
      return gated(no_grad, attended, parts.gates);
    };
    const auto mix = [&](const Value& in, const Value& gates, const at::Tensor&) {
      if (layer.convolves())
        return Value(ops::append_and_convolve(in.data, layer.taps, pages.layers[i], rows.places, *earlier));
      if (layer.delta) return Value(layer.delta->mix(ops, in.data, gates.data, rows, pages.states[i]));
      if (config_.post_norms || config_.norms_rotated)
        return attend(heads_of(no_grad, ops, layer, in, angles).adjacent(config_.head_dim), gates, nullptr);
      const ops::Operations::HeadNorms norms{factor_of(layer.q_norm), factor_of(layer.k_norm), config_.rms_norm_eps};
      return attend(in, gates, config_.qk_norm ? &norms : nullptr);
    };
    if (config_.post_norms) {
      run_layer(no_grad, ops, layer, stream, mix);
      stream.branch = with_added(stream.branch, i);
      continue;
    }
    const auto of_normed = [&](const ops::Operations::Layer& linear) {
      return ops.linear_of_norm(no_grad, residual, factor_of(layer.attention_norm), residual_epsilon_, linear);
    };
    const Value in = of_normed(layer.in), gates = layer.gates.weight.defined() ? of_normed(layer.gates) : Value();
    residual = ops.linear(no_grad, mix(in, gates, {}), layer.out, residual);
    if (layer.experts) {
      const Value x = ops.rmsnorm(no_grad, residual, {}, factor_of(layer.mlp_norm), residual_epsilon_).y;
      residual = with_added(ops::add(no_grad, layer.experts->forward(no_grad, ops, x), residual), i);
      continue;
    }
    Value inner =
        ops.linear_of_norm(no_grad, residual, factor_of(layer.mlp_norm), residual_epsilon_, layer.up, has_swiglu());
    if (!has_swiglu()) inner = activated(no_grad, ops, inner);
    residual = with_added(ops.linear(no_grad, inner, layer.down, residual), i);
  }
  if (config_.post_norms) return normed(no_grad, ops, stream, norm_).data;
  return ops.rmsnorm(no_grad, residual, {}, factor_of(norm_), residual_epsilon_).y.data;
}

bool Llama::can_defer_gradients(int64_t rows, int64_t element) const {
  return model::can_defer_gradients(config_, rows, element);
}

double Llama::flops(double rows, double pairs, bool trains, bool inputs) const {
  const int64_t width = config_.hidden_size, heads = config_.num_attention_heads * config_.head_dim,
                kv = config_.num_key_value_heads * config_.head_dim;
  const int64_t keys = config_.delta_keys(), values = config_.delta_values();
  const auto layers = static_cast<double>(config_.num_hidden_layers),
             convolving = static_cast<double>(config_.convolutions()),
             ruled = static_cast<double>(config_.delta_rules()), attending = layers - convolving - ruled;
  // A row's key reads a state and is added to it, and its query reads one.
  const double rule = product_flops(width, 2 * keys + 3 * values + 2 * config_.delta_value_heads) +
                      3 * product_flops(config_.delta_key_dim, values);
  const int64_t gates = config_.head_gates ? config_.num_attention_heads : 0;
  const auto mixtures = static_cast<double>(config_.mixtures());
  const int64_t shared = config_.shared_expert_intermediate_size,
                chosen = config_.num_experts_per_tok * config_.moe_intermediate_size;
  const double mixture =
      product_flops(width, config_.num_experts + 3 * (chosen + shared)) + (shared > 0 ? product_flops(width, 1) : 0);
  const double row =
      attending * (product_flops(width, config_.query_rows() + 2 * kv + gates) + product_flops(heads, width)) +
      convolving * product_flops(width, 4 * width) + ruled * rule +
      (layers - mixtures) * (config_.gated_mlp ? 3 : 2) * product_flops(width, config_.intermediate_size) +
      mixtures * mixture;
  return with_backward({rows * row, pairs * attending * attention_pair_flops(heads)}, trains, inputs);
}

double Llama::head_flops(double labels, bool trains, bool inputs) const {
  return with_backward({product_flops(config_.hidden_size, config_.vocab_size) * labels, 0}, trains, inputs);
}

std::unique_ptr<Decoder> llama_decoder(const DecoderConfig& config, Parameters& parameters, const std::string& part) {
  return std::make_unique<Llama>(config, parameters, part);
}

} // namespace fvlm::model
