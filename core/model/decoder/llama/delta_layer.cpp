#include "model/decoder/llama/delta_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

namespace fvlm::model {

DeltaLayer::DeltaLayer(const DecoderConfig& config, const std::function<ops::Weight(const char*)>& weight)
    : rule_{config.delta_key_heads, config.delta_value_heads,    config.delta_key_dim,
            config.delta_value_dim, weight("linear_attn.A_log"), weight("linear_attn.dt_bias")},
      taps_{weight("linear_attn.conv1d.weight"), {}}, norm_(weight("linear_attn.norm.weight")),
      width_(config.delta_rows()), epsilon_(config.rms_norm_eps) {}

Value DeltaLayer::mix(Tape& tape, Operations& ops, const Value& in, const Value& gates,
                      const Segments& segments) const {
  const Value rows = ops.silu_convolution(tape, in, width_, taps_, segments);
  const Value y = ops.gated_delta_rule(tape, rows, gates, rule_, segments);
  return gated_norm(tape, ops, y, in);
}

at::Tensor DeltaLayer::mix(Operations& ops, const at::Tensor& in, const at::Tensor& gates, const StagedRows& rows,
                           const std::vector<at::Tensor>& states) const {
  const ops::CarriedSequences sequences{rows.row_bounds, rows.slots, rows.starts, rows.longest_run()};
  const at::Tensor convolved = ops.silu_convolution(in, width_, taps_, sequences, states[0]);
  const at::Tensor y = ops.gated_delta_rule(convolved, gates, rule_, sequences, states[1]);
  Tape no_grad(Tape::Mode::forward_only);
  return gated_norm(no_grad, ops, Value(y), Value(in)).data;
}

Value DeltaLayer::gated_norm(Tape& tape, Operations& ops, const Value& y, const Value& in) const {
  const int64_t heads = rule_.value_heads;
  return ops.rmsnorm_heads(tape, {y, 0, heads}, rule_.value_dim, norm_, epsilon_, {in, width_, heads});
}

std::vector<at::Tensor> DeltaLayer::make_states(int64_t slots, const at::TensorOptions& options) const {
  const auto wide = options.dtype() == at::kDouble ? at::kDouble : at::kFloat;
  return {at::zeros({slots, taps_.count() - 1, width_}, options),
          at::zeros({slots, rule_.value_heads, rule_.key_dim, rule_.value_dim}, options.dtype(wide))};
}

} // namespace fvlm::model
