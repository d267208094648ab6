// The kind quantizer, scheme int8: symmetric, one scale for each row, which maps the row's largest magnitude to 127. No
// weight is ever clipped, so the straight-through gradient is the output's.
#include "ops/reference/common.h"

#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>

namespace fvlm::ops::reference {
namespace {

using at::Tensor;

// Codes in the weight's accumulation type, and float32 scales.
struct Quantized {
  Tensor codes, scales;
};
Quantized quantize(const Tensor& weight) {
  const Tensor wide_weight = upcast(weight);
  if (weight.numel() == 0) return {wide_weight, wide_weight.new_zeros({weight.size(0)}, at::kFloat)};
  // 127 as a tensor: on CUDA, ATen turns division by a scalar into multiplication by its reciprocal.
  const Tensor largest = wide_weight.abs().amax(1).to(at::kFloat),
               scales = largest / at::full({1}, 127, largest.options());
  const Tensor divisor = scales.unsqueeze(1).to(wide_weight.scalar_type());
  const Tensor codes = (wide_weight / divisor).round_().clamp_(-127, 127);
  return {at::where(divisor.eq(0), 0, codes), scales};
}

// In `type`, an accumulation type.
Tensor dequantize(const Tensor& codes, const Tensor& scales, at::ScalarType type) {
  return codes.to(type) * scales.unsqueeze(1).to(type);
}
Tensor dequantize(const fvlm_tensor* const* packed, at::ScalarType type) {
  return dequantize(torch_tensor(packed[0]), torch_tensor(packed[1]), wide(type));
}

} // namespace

sdk::Support Int8::supports(const Query& query) {
  return supports_number(query.device, query.dtype);
}

void Int8::requirements(const Query& query, sdk::Requirements& wanted) const {
  wanted.save({FVLM_INT, 8, 1}, {query.rows, query.cols});
  wanted.save({FVLM_FLOAT, 32, 1}, {query.rows});
}

void Int8::pack(const fvlm_call&, const Query&, const Pack& arguments) {
  const auto [codes, scales] = quantize(torch_tensor(arguments.weight));
  store(torch_tensor(arguments.packed[0]), codes);
  store(torch_tensor(arguments.packed[1]), scales);
}

void Int8::unpack(const fvlm_call&, const Query&, const Unpack& arguments) {
  const Tensor weight = torch_tensor(arguments.weight);
  store(weight, dequantize(arguments.packed, weight.scalar_type()));
}

void Int8::linear(const fvlm_call&, const Query&, const Linear& arguments) {
  const Tensor x = upcast(arguments.x);
  Tensor y = at::mm(x, dequantize(arguments.packed, x.scalar_type()).t());
  if (arguments.bias) y += upcast(arguments.bias);
  store(torch_tensor(arguments.y), y);
}

void Int8::linear_gradient(const fvlm_call&, const Query&, const LinearGradient& arguments) {
  const Tensor d_y = upcast(arguments.d_y);
  store(torch_tensor(arguments.d_x), at::mm(d_y, dequantize(arguments.packed, d_y.scalar_type())));
}

void Int8::fake_quantize_forward(const fvlm_call&, const Query&, const FakeForward& arguments) {
  const Tensor weight = torch_tensor(arguments.weight);
  const auto [codes, scales] = quantize(weight);
  store(torch_tensor(arguments.out), dequantize(codes, scales, wide(weight.scalar_type())));
}

void Int8::fake_quantize_backward(const fvlm_call&, const Query&, const FakeBackward& arguments) {
  store(torch_tensor(arguments.d_weight), torch_tensor(arguments.d_out));
}

} // namespace fvlm::ops::reference
