#include "ops/quantizer.h"

namespace fvlm::ops {

Quantizer::Packed Quantizer::pack(const at::Tensor& weight, const at::Tensor& importance) const {
  Packed packed = make_saved();
  BoundArguments<fvlm_quantizer_pack> arguments;
  arguments.weight = arguments.bind(weight);
  arguments.bind(arguments.packed, packed);
  arguments.importance = arguments.bind(importance);
  run("quantizer pack", backend().table().pack, arguments);
  return packed;
}

at::Tensor Quantizer::unpack(const Packed& packed, const at::Tensor& into) const {
  at::Tensor weight = output(into, {query().rows, query().cols}, scalar_type(query().dtype));
  BoundArguments<fvlm_quantizer_unpack> arguments;
  arguments.bind(arguments.packed, packed);
  arguments.weight = arguments.bind(weight);
  run("quantizer unpack", backend().table().unpack, arguments);
  return weight;
}

at::Tensor Quantizer::linear(const Packed& packed, const at::Tensor& x, const at::Tensor& bias, const at::Tensor& into,
                             const FusedOperands& fused) const {
  const int64_t width = query().options & FVLM_QUANTIZED_SWIGLU ? query().rows / 2 : query().rows;
  at::Tensor y = output(into, {x.size(0), width}, x.scalar_type());
  BoundArguments<fvlm_quantizer_linear> arguments;
  arguments.bind(arguments.packed, packed);
  arguments.x = arguments.bind(x);
  arguments.bias = arguments.bind(bias);
  arguments.y = arguments.bind(y);
  arguments.residual = arguments.bind(fused.residual);
  arguments.norm_weight = arguments.bind(fused.norm_weight);
  run("quantizer linear", backend().table().linear, arguments);
  return y;
}

at::Tensor Quantizer::linear_gradient(const Packed& packed, const at::Tensor& d_y) const {
  at::Tensor d_x = output({}, {d_y.size(0), query().cols}, d_y.scalar_type());
  BoundArguments<fvlm_quantizer_linear_gradient> arguments;
  arguments.bind(arguments.packed, packed);
  arguments.d_y = arguments.bind(d_y);
  arguments.d_x = arguments.bind(d_x);
  run("quantizer linear gradient", backend().table().linear_gradient, arguments);
  return d_x;
}

at::Tensor Quantizer::fake_quantize(const at::Tensor& weight) const {
  at::Tensor out = output({}, weight.sizes(), weight.scalar_type());
  BoundArguments<fvlm_fake_quantize_forward> arguments;
  arguments.weight = arguments.bind(weight);
  arguments.out = arguments.bind(out);
  run("fake quantize forward", backend().table().fake_quantize_forward, arguments);
  return out;
}

at::Tensor Quantizer::fake_quantize_gradient(const at::Tensor& weight, const at::Tensor& d_out) const {
  at::Tensor d_weight = output({}, weight.sizes(), weight.scalar_type());
  BoundArguments<fvlm_fake_quantize_backward> arguments;
  arguments.weight = arguments.bind(weight);
  arguments.d_out = arguments.bind(d_out);
  arguments.d_weight = arguments.bind(d_weight);
  run("fake quantize backward", backend().table().fake_quantize_backward, arguments);
  return d_weight;
}

} // namespace fvlm::ops
