// Layers that carry a state from row to row.
#include "ops/operations.h"

namespace fvlm::ops {
namespace {

at::Tensor matrix(const Weight& taps) { // [width, taps]
  return taps.value().select(1, 0);
}

GatedDeltaRule::Operands operands(const at::Tensor& rows, const at::Tensor& gates, const DeltaRule& rule) {
  return {rows, gates, rule.log_decay.value(), rule.step_bias.value()};
}

} // namespace

const ShortConvolution& Operations::convolution_for(const at::Tensor& x, const ConvolutionTaps& taps, int64_t segments,
                                                    int64_t longest, uint32_t options) {
  auto query = kernels_query(FVLM_OP_SHORT_CONVOLUTION, options | option_if(FVLM_WITH_BIAS, taps.bias.defined()),
                             x.size(0), x.size(1));
  query.segments = segments;
  query.max_seqlen = static_cast<int32_t>(longest);
  query.taps = static_cast<int32_t>(taps.count());
  return kernel<ShortConvolution>(query);
}

Value Operations::silu_convolution(Tape& tape, const Value& x, int64_t width, const ConvolutionTaps& taps,
                                   const Segments& segments) {
  const bool records = tape.records(x, taps.weight, taps.bias);
  const at::Tensor rows = x.data.narrow(1, 0, width);
  const SegmentStates own{segments.cu_seqlens, {}, {}, {}};
  const ShortConvolution& op = convolution_for(rows, taps, segments.cu_seqlens.size(0) - 1, segments.max_length,
                                               option_if(FVLM_WITH_BACKWARD, records));
  Value y(op.forward(rows, matrix(taps.weight), taps.bias.value(), own), records);
  if (!records) return y;
  tape.set_recompute(y, [=, &op] { return op.forward(rows, matrix(taps.weight), taps.bias.value(), own); });
  const Gradient::Columns columns{0, width};
  if (x.requires_grad()) x.gradient->announce(columns);
  tape.push([=, this, &op, all = x.data, in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const bool accumulate = Weight::begin_write(taps.weight, taps.bias);
    const auto [total, overwrites] =
        in ? in->destination(columns, all.sizes(), all.options()) : std::pair(at::Tensor(), false);
    const at::Tensor d_weight = taps.weight.gradient();
    const at::Tensor d_x = op.backward(rows, matrix(taps.weight), taps.bias.value(), own.cu_seqlens, d_y,
                                       taps.weight.requires_grad(), taps.bias.requires_grad(),
                                       {overwrites ? total : at::Tensor(),
                                        d_weight.defined() ? d_weight.select(1, 0) : d_weight, taps.bias.gradient()},
                                       accumulate)
                               .x;
    if (in && !overwrites) add_strided(d_x, total);
  });
  return y;
}

at::Tensor Operations::silu_convolution(const at::Tensor& x, int64_t width, const ConvolutionTaps& taps,
                                        const CarriedSequences& sequences, const at::Tensor& states) {
  const at::Tensor rows = x.narrow(1, 0, width);
  return convolution_for(rows, taps, sequences.slots.size(0), sequences.longest, FVLM_WITH_STATES)
      .forward(rows, matrix(taps.weight), taps.bias.value(),
               {sequences.bounds, sequences.slots, sequences.starts, states});
}

const GatedDeltaRule& Operations::delta_rule_for(int64_t rows, const DeltaRule& rule, int64_t segments, int64_t longest,
                                                 uint32_t options) {
  auto query = kernels_query(FVLM_OP_DELTA_RULE, options, rows, rule.value_heads * rule.value_dim);
  query.segments = segments;
  query.max_seqlen = static_cast<int32_t>(longest);
  query.heads = static_cast<int32_t>(rule.value_heads);
  query.head_dim = static_cast<int32_t>(rule.value_dim);
  query.key_heads = static_cast<int32_t>(rule.key_heads);
  query.key_dim = static_cast<int32_t>(rule.key_dim);
  return kernel<GatedDeltaRule>(query);
}

Value Operations::gated_delta_rule(Tape& tape, const Value& rows, const Value& gates, const DeltaRule& rule,
                                   const Segments& segments) {
  const bool records = tape.records(rows, gates, rule.log_decay, rule.step_bias);
  const GatedDeltaRule& op = delta_rule_for(rows.data.size(0), rule, segments.cu_seqlens.size(0) - 1,
                                            segments.max_length, option_if(FVLM_WITH_BACKWARD, records));
  GatedDeltaRule::Output output = op.forward(operands(rows.data, gates.data, rule), {segments.cu_seqlens, {}, {}, {}});
  Value y(output.y, records);
  if (!records) return y;
  output.y.reset();
  tape.push([&op, rule, output, bounds = segments.cu_seqlens, saved_rows = rows.saved(), saved_gates = gates.saved(),
             of_rows = rows.gradient, of_gates = gates.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const bool accumulate = Weight::begin_write(rule.log_decay, rule.step_bias);
    const GatedDeltaRule::Operands d = op.backward(
        operands(saved_rows.get(), saved_gates.get(), rule), bounds, output, d_y, rule.log_decay.requires_grad(),
        rule.step_bias.requires_grad(), {{}, {}, rule.log_decay.gradient(), rule.step_bias.gradient()}, accumulate);
    if (of_rows) of_rows->add(d.qkv);
    if (of_gates) of_gates->add(d.gates);
  });
  return y;
}

at::Tensor Operations::gated_delta_rule(const at::Tensor& rows, const at::Tensor& gates, const DeltaRule& rule,
                                        const CarriedSequences& sequences, const at::Tensor& states) {
  return delta_rule_for(rows.size(0), rule, sequences.slots.size(0), sequences.longest, FVLM_WITH_STATES)
      .forward(operands(rows, gates, rule), {sequences.bounds, sequences.slots, sequences.starts, states})
      .y;
}

} // namespace fvlm::ops
