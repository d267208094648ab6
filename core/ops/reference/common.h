// What the references share: number types, and how results reach their tensors.
#pragma once
#include "ops/reference/references.h"
#include "ops/tensor_bridge.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

namespace fvlm::ops::reference {

// "ATen" and the lowest score, for a device and floating type that ATen computes with here; else why not. A gradient
// type is `dtype` itself or float32.
sdk::Support supports_number(fvlm_device device, fvlm_dtype dtype, const char* how = "ATen");
sdk::Support supports_numbers(fvlm_device device, fvlm_dtype dtype, fvlm_dtype gradient_dtype,
                              const char* how = "ATen");

// What sums and statistics of `type` are kept in: float64 for float64, else float32.
inline at::ScalarType wide(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}
inline at::Tensor widened(const at::Tensor& tensor) {
  return tensor.to(wide(tensor.scalar_type()));
}
inline at::Tensor widened(const fvlm_tensor* tensor) {
  return widened(torch_tensor(tensor));
}

// a b, both [rows, cols], in `type`, which is at least as wide as both. float32 sums on every path.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, at::ScalarType type);

// The type of a saved statistic.
inline fvlm_dtype wide(fvlm_dtype dtype) {
  return dtype.bits == 64 ? dtype : fvlm_dtype{FVLM_FLOAT, 32, 1};
}

// Rounds `value` once into `out`, or adds it to what `out` holds.
void store(const at::Tensor& out, const at::Tensor& value, bool accumulate = false);

// a b into `out`, or added to it, without a copy between where the types allow.
void store_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate = false);

// Llama's rotation of the first `rotary_dim` dimensions of x [rows, heads, head_dim], in x's type, which is wide.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& positions, int64_t rotary_dim, double theta, bool inverse);

} // namespace fvlm::ops::reference
