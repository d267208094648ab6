// operations_swiglu.cpp: a gated MLP. A GPU's products move what SwiGLU reads and writes while they multiply, so that
// it takes hardly any time of its own.
#include "ops/dry_run.h"
#include "ops/operations.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace fvlm::ops {

Operations::SwigluLinears Operations::swiglu_linears(const Tape& tape, const Value& x, const Layer& up,
                                                     const Layer& down) {
  for (const Layer* each : {&up, &down})
    if (!each->weight.is_plain() || each->weight.is_strided() || each->bias.defined()) return {};
  if (!tape.records(x.requires_grad() || up.weight.requires_grad()) || tape.recomputes_cheap_outputs() ||
      observe_linear_)
    return {};
  const uint32_t backward = FVLM_WITH_BACKWARD;
  SwigluLinears all{&linear_for(x.data, up, backward, gradient_type(up)),
                    &linear_for(x.data, down, backward, gradient_type(down))};
  all.fp8 = &fp8_or_plain(*all.up, up.weight) != all.up && &fp8_or_plain(*all.down, down.weight) != all.down;
  fvlm_kernels_query of_up = all.up->query(), of_down = all.down->query();
  const uint32_t options = backward | option_if(FVLM_WITH_FP8, all.fp8);
  of_up.options = options | FVLM_WITH_SWIGLU, of_up.width /= 2;
  of_down.options = options | FVLM_SWIGLU_INPUT;
  if (prefers_swiglu_apart(*all.up, x.data.size(0), of_up.width)) return {};
  all.up_with_swiglu = extended(*all.up, of_up), all.down_of_swiglu = extended(*all.down, of_down);
  return all;
}

// On a CPU the reference, which has SwiGLU in linears, is slower than a plugin's SwiGLU.
bool Operations::prefers_swiglu_apart(const Linear& linear, int64_t rows, int64_t width) {
  if (!real_device(options_.device).is_cpu()) return false;
  const auto query = kernels_query(FVLM_OP_SWIGLU, FVLM_WITH_BACKWARD, rows, width);
  return kernel<SwiGlu>(query).backend().plugin() != linear.backend().plugin();
}

Value Operations::swiglu_mlp(Tape& tape, Value x, const Layer& up, const Layer& down, const SharedGradientPass& pass,
                             const at::Tensor& into) {
  if (Value y = joined_swiglu_mlp(tape, x, up, down, into); y.defined()) return y;
  const SwigluLinears linears = swiglu_linears(tape, x, up, down);
  if (!linears.up_with_swiglu || !linears.down_of_swiglu) {
    x = linear(tape, x, up.weight, up.bias, pass);
    x = swiglu(tape, x, into);
    return linear(tape, x, down.weight, down.bias, pass);
  }
  join_side_stream_after_backward(tape);
  (void)tape.records(x, up.weight);
  const Linear::Output output = linears.up_with_swiglu->forward(x.data, up.weight.value(), {}, {into, {}, {}});
  const Value gate_up(output.pre_activation, true), inner(output.y);
  const Linear &op_up = linears.fp8 ? fp8_or_plain(*linears.up, up.weight) : *linears.up,
               &op_down = linears.fp8 ? fp8_or_plain(*linears.down, down.weight) : *linears.down;
  push_gradients(tape, op_up, *linears.up, x, up, gate_up, pass, nullptr);
  x = {};
  (void)tape.records(gate_up, down.weight);
  Value y(op_down.forward(inner.data, down.weight.value(), {}).y, true);
  push_gradients(tape, op_down, *linears.down, inner, down, y, pass,
                 [op = linears.down_of_swiglu, gate_up, weight = down.weight](const at::Tensor& d_y) {
                   at::Tensor d = gate_up.gradient->allocate_over(gate_up.data);
                   op->input_gradient(d_y, weight.value(), gate_up.data, d);
                   gate_up.gradient->add(std::move(d));
                 });
  return y;
}

Value Operations::linear_of_swiglu(Tape& tape, const Value& gate_up, const Layer& down, const Value& residual,
                                   int64_t columns) {
  const int64_t width = down.weight.value().size(1);
  if (columns == 0) columns = padded(width);
  if (columns == width || !down.weight.is_plain() || observe_linear_)
    return linear(tape, swiglu(tape, gate_up), down, residual);
  const int64_t behind = columns - width;
  at::Tensor inner = at::empty({gate_up.data.size(0), columns}, gate_up.data.options());
  inner.narrow(1, width, behind).zero_();
  const Value narrow = swiglu(tape, gate_up, inner.narrow(1, 0, width));
  Value wide(std::move(inner), narrow.requires_grad());
  if (narrow.recompute)
    tape.set_recompute(wide, [again = narrow.recompute, behind] {
      return at::constant_pad_nd((*again)(), {0, behind});
    });
  if (wide.requires_grad())
    tape.push([width, in = narrow.gradient, out = wide.gradient] {
      if (const at::Tensor d = out->take(); d.defined()) in->add(d.narrow(1, 0, width));
    });
  return linear(tape, wide, {padded(tape, down.weight, columns), down.bias}, residual);
}

// `pass_on`: how the input gradient is computed and passed on, in place of adding it to that of x.
void Operations::push_gradients(Tape& tape, const Linear& op, const Linear& plain, const Value& x, const Layer& layer,
                                const Value& y, const SharedGradientPass& pass, InputGradient pass_on) {
  const Weight& weight = layer.weight;
  const bool passes_on = pass_on != nullptr;
  if (!pass_on)
    pass_on = [&op, in = x.gradient, weight](const at::Tensor& d_y) {
      if (in) in->add(op.input_gradient(d_y, weight.value()));
    };
  if (const auto shared = pass.gradient_of(weight, x.data.size(0)))
    return push_shared_weight_gradient(tape, plain, x.data, layer, y, shared, pass.index(), std::move(pass_on));
  const Linear* const in_fp8 = weight.requires_grad() ? fp8_gradients(op, plain) : nullptr;
  tape.push([this, &plain, in_fp8, layer, passes_on, in = x.gradient, out = y.gradient, pass_on = std::move(pass_on),
             saved = weight.requires_grad() ? x.saved() : SavedTensor<at::Tensor>()] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (!in_fp8) {
      weight_gradient(plain, d_y, saved.get(), layer.weight, layer.bias);
      return pass_on(d_y);
    }
    const at::Tensor d_x = gradients_in_fp8(*in_fp8, d_y, saved.get(), layer.weight, in && !passes_on);
    if (passes_on) return pass_on(d_y);
    if (in) in->add(d_x);
  });
}

} // namespace fvlm::ops
