#include "ops/kernels.h"

namespace fvlm::ops {
namespace {

constexpr auto backward_workspace = &fvlm_requirements::backward_workspace;

} // namespace

at::Tensor Kernel::gradient(bool is_required, const at::Tensor& into, at::IntArrayRef shape) const {
  return is_required ? output(into, shape, scalar_type(query().gradient_dtype)) : at::Tensor();
}

Norm::Output Norm::forward(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                           const at::Tensor& bias, const Output& into, const at::Tensor& compensation,
                           const at::Tensor& gate) const {
  const bool compensates = query().options & FVLM_COMPENSATED;
  Output output{like(x, into.y), residual.defined() ? like(x, into.sum) : at::Tensor(), make_saved(),
                compensates ? like(x, into.compensation) : at::Tensor()};
  BoundArguments<fvlm_norm_forward> arguments;
  arguments.x = arguments.bind(x);
  arguments.residual = arguments.bind(residual);
  arguments.weight = arguments.bind(weight);
  arguments.bias = arguments.bind(bias);
  arguments.y = arguments.bind(output.y);
  arguments.sum = arguments.bind(output.sum);
  arguments.bind(arguments.saved, output.saved);
  arguments.rest = arguments.bind(compensation);
  arguments.sum_rest = arguments.bind(output.compensation);
  arguments.gate = arguments.bind(gate);
  if (query().op == FVLM_OP_RMSNORM)
    run("rmsnorm forward", backend().table().rmsnorm_forward, arguments);
  else
    run("layernorm forward", backend().table().layernorm_forward, arguments);
  return output;
}

Norm::Gradients Norm::backward(const at::Tensor& s, const at::Tensor& weight, const Output& output,
                               const at::Tensor& d_y, const at::Tensor& d_sum, Required required, const Gradients& into,
                               bool accumulate, const at::Tensor& gate) const {
  const bool is_rms = query().op == FVLM_OP_RMSNORM;
  Gradients gradients{like(s, into.x), gradient(required.weight, into.weight, weight.sizes()),
                      gradient(required.bias && !is_rms, into.bias, weight.sizes()), into.column_sums,
                      gate.defined() ? like(s, into.gate) : at::Tensor()};
  BoundArguments<fvlm_norm_backward> arguments;
  arguments.accumulate = accumulate;
  arguments.d_y = arguments.bind(d_y);
  arguments.d_sum = arguments.bind(d_sum);
  arguments.s = arguments.bind(s);
  arguments.weight = arguments.bind(weight);
  arguments.bind(arguments.saved, output.saved);
  arguments.d_x = arguments.bind(gradients.x);
  arguments.d_weight = arguments.bind(gradients.weight);
  arguments.d_bias = arguments.bind(gradients.bias);
  arguments.d_x_sums = arguments.bind(gradients.column_sums);
  arguments.gate = arguments.bind(gate);
  arguments.d_gate = arguments.bind(gradients.gate);
  if (is_rms)
    run("rmsnorm backward", backend().table().rmsnorm_backward, arguments, backward_workspace);
  else
    run("layernorm backward", backend().table().layernorm_backward, arguments, backward_workspace);
  return gradients;
}

at::Tensor Rope::apply(const at::Tensor& x, const at::Tensor& positions, bool inverse, const at::Tensor& into,
                       const at::Tensor& frequencies) const {
  at::Tensor out = like(x, into);
  BoundArguments<fvlm_rope_apply> arguments;
  arguments.inverse = inverse;
  arguments.x = arguments.bind(x);
  arguments.positions = arguments.bind(positions);
  arguments.out = arguments.bind(out);
  arguments.frequencies = arguments.bind(frequencies);
  run("rope", backend().table().rope, arguments, inverse ? backward_workspace : &fvlm_requirements::forward_workspace);
  return out;
}

at::Tensor SwiGlu::forward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& into) const {
  at::Tensor y = like(gate, into);
  BoundArguments<fvlm_swiglu_forward> arguments;
  arguments.gate = arguments.bind(gate);
  arguments.up = arguments.bind(up);
  arguments.y = arguments.bind(y);
  run("swiglu forward", backend().table().swiglu_forward, arguments);
  return y;
}

SwiGlu::Gradients SwiGlu::backward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& d_y,
                                   const Gradients& into, const at::Tensor& y) const {
  Gradients gradients{like(gate, into.gate), like(up, into.up)};
  BoundArguments<fvlm_swiglu_backward> arguments;
  arguments.gate = arguments.bind(gate);
  arguments.up = arguments.bind(up);
  arguments.d_y = arguments.bind(d_y);
  arguments.d_gate = arguments.bind(gradients.gate);
  arguments.d_up = arguments.bind(gradients.up);
  arguments.y = arguments.bind(y);
  run("swiglu backward", backend().table().swiglu_backward, arguments, backward_workspace);
  return gradients;
}

at::Tensor BiasGelu::forward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& into) const {
  at::Tensor y = like(x, into);
  BoundArguments<fvlm_bias_gelu_forward> arguments;
  arguments.x = arguments.bind(x);
  arguments.bias = arguments.bind(bias);
  arguments.y = arguments.bind(y);
  run("bias_gelu forward", backend().table().bias_gelu_forward, arguments);
  return y;
}

BiasGelu::Gradients BiasGelu::backward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& d_y,
                                       bool requires_bias, const Gradients& into, bool accumulate) const {
  Gradients gradients{like(x, into.x), gradient(requires_bias, into.bias, {x.size(1)})};
  BoundArguments<fvlm_bias_gelu_backward> arguments;
  arguments.accumulate = accumulate;
  arguments.x = arguments.bind(x);
  arguments.bias = arguments.bind(bias);
  arguments.d_y = arguments.bind(d_y);
  arguments.d_x = arguments.bind(gradients.x);
  arguments.d_bias = arguments.bind(gradients.bias);
  run("bias_gelu backward", backend().table().bias_gelu_backward, arguments, backward_workspace);
  return gradients;
}

at::Tensor LayerScale::forward(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& residual,
                               const at::Tensor& into) const {
  at::Tensor y = like(x, into);
  BoundArguments<fvlm_layerscale_forward> arguments;
  arguments.x = arguments.bind(x);
  arguments.scale = arguments.bind(scale);
  arguments.residual = arguments.bind(residual);
  arguments.y = arguments.bind(y);
  run("layerscale forward", backend().table().layerscale_forward, arguments);
  return y;
}

LayerScale::Gradients LayerScale::backward(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& d_y,
                                           bool requires_scale, const Gradients& into, bool accumulate) const {
  Gradients gradients{like(x, into.x), gradient(requires_scale, into.scale, scale.sizes()), into.column_sums};
  BoundArguments<fvlm_layerscale_backward> arguments;
  arguments.accumulate = accumulate;
  arguments.x = arguments.bind(x);
  arguments.scale = arguments.bind(scale);
  arguments.d_y = arguments.bind(d_y);
  arguments.d_x = arguments.bind(gradients.x);
  arguments.d_scale = arguments.bind(gradients.scale);
  arguments.d_x_sums = arguments.bind(gradients.column_sums);
  run("layerscale backward", backend().table().layerscale_backward, arguments, backward_workspace);
  return gradients;
}

Linear::Output Linear::forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               const Output& into, const at::Tensor& residual, const at::Tensor& compensation,
                               const at::Tensor& norm_weight) const {
  const bool gated = query().options & FVLM_WITH_SWIGLU,
             keeps_pre_activation =
                 (query().options & FVLM_WITH_BACKWARD) && (gated || (query().options & FVLM_WITH_GELU));
  const std::array<int64_t, 2> shape = {x.size(0), query().width};
  Output output{this->output(into.y, shape, x.scalar_type()), {}, {}};
  if (query().options & FVLM_COMPENSATED) output.compensation = this->output(into.compensation, shape, x.scalar_type());
  if (keeps_pre_activation)
    output.pre_activation =
        this->output(into.pre_activation, {shape[0], gated ? 2 * shape[1] : shape[1]}, x.scalar_type());
  BoundArguments<fvlm_linear_forward> arguments;
  arguments.x = arguments.bind(x);
  arguments.weight = arguments.bind(weight);
  arguments.bias = arguments.bind(bias);
  arguments.y = arguments.bind(output.y);
  arguments.pre_activation = arguments.bind(output.pre_activation);
  arguments.residual = arguments.bind(residual);
  arguments.rest = arguments.bind(compensation);
  arguments.y_rest = arguments.bind(output.compensation);
  arguments.norm_weight = arguments.bind(norm_weight);
  run("linear forward", backend().table().linear_forward, arguments);
  return output;
}

at::Tensor Linear::input_gradient(const at::Tensor& d_y, const at::Tensor& weight, const at::Tensor& pre_activation,
                                  const at::Tensor& into, const at::Tensor& column_sums, bool accumulate,
                                  const at::Tensor& x) const {
  const int64_t columns = (query().options & FVLM_SWIGLU_INPUT ? 2 : 1) * weight.size(1);
  at::Tensor d_x = output(into, {d_y.size(0), columns}, d_y.scalar_type());
  BoundArguments<fvlm_linear_input_gradient> arguments;
  arguments.d_y = arguments.bind(d_y);
  arguments.weight = arguments.bind(weight);
  arguments.pre_activation = arguments.bind(pre_activation);
  arguments.d_x = arguments.bind(d_x);
  arguments.accumulate = accumulate;
  arguments.d_x_sums = arguments.bind(column_sums);
  arguments.x = arguments.bind(x);
  run("linear input gradient", backend().table().linear_input_gradient, arguments, backward_workspace);
  return d_x;
}

Linear::Gradients Linear::weight_gradient(const at::Tensor& d_y, const at::Tensor& x, bool requires_bias,
                                          const Gradients& into, bool accumulate) const {
  Gradients gradients{gradient(true, into.weight, {d_y.size(1), x.size(1)}),
                      gradient(requires_bias, into.bias, {d_y.size(1)})};
  BoundArguments<fvlm_linear_weight_gradient> arguments;
  arguments.accumulate = accumulate;
  arguments.d_y = arguments.bind(d_y);
  arguments.x = arguments.bind(x);
  arguments.d_weight = arguments.bind(gradients.weight);
  arguments.d_bias = arguments.bind(gradients.bias);
  run("linear weight gradient", backend().table().linear_weight_gradient, arguments, backward_workspace);
  return gradients;
}

void Linear::both_gradients(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& d_weight, const at::Tensor& d_x, bool accumulate) const {
  BoundArguments<fvlm_linear_weight_gradient> arguments;
  arguments.accumulate = accumulate;
  arguments.d_y = arguments.bind(d_y);
  arguments.x = arguments.bind(x);
  arguments.d_weight = arguments.bind(d_weight);
  arguments.weight = arguments.bind(weight);
  arguments.d_x = arguments.bind(d_x);
  run("linear both gradients", backend().table().linear_weight_gradient, arguments, backward_workspace);
}

FoldRowScale::Linears FoldRowScale::forward(const Parameters& parameters) const {
  Linears scaled{like(parameters.linears.weight), like(parameters.linears.bias)};
  BoundArguments<fvlm_scaled_rows_forward> arguments;
  arguments.scale = arguments.bind(parameters.scale);
  arguments.weight = arguments.bind(parameters.linears.weight);
  arguments.bias = arguments.bind(parameters.linears.bias);
  arguments.scaled_weight = arguments.bind(scaled.weight);
  arguments.scaled_bias = arguments.bind(scaled.bias);
  run("scaled_rows forward", backend().table().scaled_rows_forward, arguments);
  return scaled;
}

void FoldRowScale::backward(const Parameters& parameters, const Linears& d_scaled, const Parameters& into,
                            bool accumulate) const {
  BoundArguments<fvlm_scaled_rows_backward> arguments;
  arguments.accumulate = accumulate;
  arguments.scale = arguments.bind(parameters.scale);
  arguments.weight = arguments.bind(parameters.linears.weight);
  arguments.bias = arguments.bind(parameters.linears.bias);
  arguments.d_scaled_weight = arguments.bind(d_scaled.weight);
  arguments.d_scaled_bias = arguments.bind(d_scaled.bias);
  arguments.d_scale = arguments.bind(into.scale);
  arguments.d_weight = arguments.bind(into.linears.weight);
  arguments.d_bias = arguments.bind(into.linears.bias);
  run("scaled_rows backward", backend().table().scaled_rows_backward, arguments, backward_workspace);
}

namespace {

template <class Arguments>
void bind_segments(Arguments& arguments, const SegmentStates& segments) {
  arguments.cu_seqlens = arguments.bind(segments.cu_seqlens);
  arguments.slots = arguments.bind(segments.slots);
  arguments.starts = arguments.bind(segments.starts);
  arguments.states = arguments.bind(segments.states);
}

} // namespace

at::Tensor ShortConvolution::forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                     const SegmentStates& segments) const {
  at::Tensor y = like(x);
  BoundArguments<fvlm_convolution_forward> arguments;
  arguments.x = arguments.bind(x);
  arguments.weight = arguments.bind(weight);
  arguments.bias = arguments.bind(bias);
  bind_segments(arguments, segments);
  arguments.y = arguments.bind(y);
  run("short_convolution forward", backend().table().short_convolution_forward, arguments);
  return y;
}

ShortConvolution::Gradients ShortConvolution::backward(const at::Tensor& x, const at::Tensor& weight,
                                                       const at::Tensor& bias, const at::Tensor& cu_seqlens,
                                                       const at::Tensor& d_y, bool requires_weight, bool requires_bias,
                                                       const Gradients& into, bool accumulate) const {
  Gradients gradients{like(x, into.x), gradient(requires_weight, into.weight, weight.sizes()),
                      gradient(requires_bias, into.bias, {x.size(1)})};
  BoundArguments<fvlm_convolution_backward> arguments;
  arguments.accumulate = accumulate;
  arguments.x = arguments.bind(x);
  arguments.weight = arguments.bind(weight);
  arguments.bias = arguments.bind(bias);
  arguments.cu_seqlens = arguments.bind(cu_seqlens);
  arguments.d_y = arguments.bind(d_y);
  arguments.d_x = arguments.bind(gradients.x);
  arguments.d_weight = arguments.bind(gradients.weight);
  arguments.d_bias = arguments.bind(gradients.bias);
  run("short_convolution backward", backend().table().short_convolution_backward, arguments, backward_workspace);
  return gradients;
}

GatedDeltaRule::Output GatedDeltaRule::forward(const Operands& of, const SegmentStates& segments) const {
  Output output{this->output({}, {of.qkv.size(0), query().width}, of.qkv.scalar_type()), make_saved()};
  BoundArguments<fvlm_delta_rule_forward> arguments;
  arguments.qkv = arguments.bind(of.qkv);
  arguments.gates = arguments.bind(of.gates);
  arguments.log_decay = arguments.bind(of.log_decay);
  arguments.step_bias = arguments.bind(of.step_bias);
  bind_segments(arguments, segments);
  arguments.y = arguments.bind(output.y);
  arguments.bind(arguments.saved, output.saved);
  run("delta_rule forward", backend().table().delta_rule_forward, arguments);
  return output;
}

GatedDeltaRule::Operands GatedDeltaRule::backward(const Operands& of, const at::Tensor& cu_seqlens,
                                                  const Output& output, const at::Tensor& d_y, bool requires_log_decay,
                                                  bool requires_step_bias, const Operands& into,
                                                  bool accumulate) const {
  Operands gradients{like(of.qkv, into.qkv), like(of.gates, into.gates),
                     gradient(requires_log_decay, into.log_decay, of.log_decay.sizes()),
                     gradient(requires_step_bias, into.step_bias, of.step_bias.sizes())};
  BoundArguments<fvlm_delta_rule_backward> arguments;
  arguments.accumulate = accumulate;
  arguments.qkv = arguments.bind(of.qkv);
  arguments.gates = arguments.bind(of.gates);
  arguments.log_decay = arguments.bind(of.log_decay);
  arguments.step_bias = arguments.bind(of.step_bias);
  arguments.cu_seqlens = arguments.bind(cu_seqlens);
  arguments.d_y = arguments.bind(d_y);
  arguments.bind(arguments.saved, output.saved);
  arguments.d_qkv = arguments.bind(gradients.qkv);
  arguments.d_gates = arguments.bind(gradients.gates);
  arguments.d_log_decay = arguments.bind(gradients.log_decay);
  arguments.d_step_bias = arguments.bind(gradients.step_bias);
  run("delta_rule backward", backend().table().delta_rule_backward, arguments, backward_workspace);
  return gradients;
}

at::Tensor FewRowsExperts::forward(const Operands& of) const {
  at::Tensor y = like(of.x);
  BoundArguments<fvlm_experts_forward> arguments;
  arguments.x = arguments.bind(of.x);
  arguments.logits = arguments.bind(of.logits);
  arguments.bias = arguments.bind(of.bias);
  arguments.gate_up = arguments.bind(of.gate_up);
  arguments.down = arguments.bind(of.down);
  arguments.gate_up_scales = arguments.bind(of.gate_up_scales);
  arguments.down_scales = arguments.bind(of.down_scales);
  arguments.y = arguments.bind(y);
  run("experts forward", backend().table().experts_forward, arguments);
  return y;
}

} // namespace fvlm::ops
