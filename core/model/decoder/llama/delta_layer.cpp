#include "model/decoder/llama/delta_layer.h"

#include "ops/gates.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

namespace fvlm::model {

DeltaLayer::Segments::Segments(const ops::Segments& segments, int64_t rows, int64_t taps,
                               const at::TensorOptions& options)
    : chunks(segments.cu_seqlens, rows, segments.max_length),
      within(ops::rows_within_segments(segments.cu_seqlens, rows, taps - 1, options)) {}

DeltaLayer::Runs::Runs(const StagedRows& rows, int64_t taps)
    : chunks(rows.row_bounds, rows.tokens.size(0), rows.longest_run()),
      carried(rows.row_bounds, rows.sequences, taps - 1), slots(rows.slots.to(at::kLong)), starts(rows.starts.ne(0)) {}

DeltaLayer::DeltaLayer(const DecoderConfig& config, const std::function<ops::Weight(const char*)>& weight)
    : rule_{config.delta_key_heads, config.delta_value_heads,    config.delta_key_dim,
            config.delta_value_dim, weight("linear_attn.A_log"), weight("linear_attn.dt_bias")},
      taps_{weight("linear_attn.conv1d.weight"), {}}, norm_(weight("linear_attn.norm.weight")),
      width_(config.delta_rows()), epsilon_(config.rms_norm_eps) {}

Value DeltaLayer::mix(Tape& tape, const Value& in, const Value& gates, const Segments& segments) const {
  const Value rows = ops::silu_convolution(tape, in, width_, taps_, segments.within);
  const Value y = ops::gated_delta_rule(tape, rows, gates, rule_, segments.chunks);
  return ops::rmsnorm_gated_by_silu(tape, y, norm_, epsilon_, in, width_);
}

at::Tensor DeltaLayer::mix(const at::Tensor& in, const at::Tensor& gates, const Runs& runs,
                           const std::vector<at::Tensor>& states) const {
  std::vector<at::Tensor> own; // of the sequences
  for (const at::Tensor& all : states) {
    const at::Tensor taken = all.index_select(0, runs.slots);
    std::vector<int64_t> sizes(static_cast<size_t>(taken.dim()), 1);
    sizes.front() = runs.starts.size(0);
    own.push_back(taken.masked_fill_(runs.starts.view(sizes), 0));
  }
  const at::Tensor rows = ops::continue_silu_convolution(in.narrow(1, 0, width_), taps_, runs.carried, own[0]);
  const at::Tensor y = ops::continue_delta_rule(rows, gates, rule_, runs.chunks, own[1]);
  for (size_t i = 0; i < own.size(); ++i) states[i].index_copy_(0, runs.slots, own[i]);
  Tape no_grad(Tape::Mode::forward_only);
  return ops::rmsnorm_gated_by_silu(no_grad, Value(y), norm_, epsilon_, Value(in), width_).data;
}

std::vector<at::Tensor> DeltaLayer::make_states(int64_t slots, const at::TensorOptions& options) const {
  const auto wide = options.dtype() == at::kDouble ? at::kDouble : at::kFloat;
  return {at::zeros({slots, taps_.count() - 1, width_}, options),
          at::zeros({slots, rule_.value_heads, rule_.key_dim, rule_.value_dim}, options.dtype(wide))};
}

} // namespace fvlm::model
