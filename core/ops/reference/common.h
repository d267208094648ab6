// Shared by the references: types, and storing of results.
#pragma once
#include "ops/dry_run.h"
#include "ops/reference/references.h"
#include "ops/tensor_bridge.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

namespace fvlm::ops::reference {

// Accepts, with the lowest score and the reason `how`, a floating-point type and a device that ATen computes with here.
// A gradient type has to be `dtype` or float32.
sdk::Support supports_number(fvlm_device device, fvlm_dtype dtype, const char* how = "ATen");
sdk::Support supports_numbers(fvlm_device device, fvlm_dtype dtype, fvlm_dtype gradient_dtype,
                              const char* how = "ATen");

// The accumulation type: float64 for float64, else float32.
inline at::ScalarType wide(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}
inline at::Tensor upcast(const at::Tensor& tensor) {
  return tensor.to(wide(tensor.scalar_type()));
}
inline at::Tensor upcast(const fvlm_tensor* tensor) {
  return upcast(torch_tensor(tensor));
}

// Whether the tensor is on that device or, in a dry run, stands for one that is.
inline bool is_on_cpu(const at::Tensor& tensor) {
  return real_device(tensor.device()).is_cpu();
}
inline bool is_on_cuda(const at::Tensor& tensor) {
  return real_device(tensor.device()).is_cuda();
}

// The matrix product a b in `type`, which is at least as wide as both operands. Accumulates in float32 or wider.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, at::ScalarType type);

// The matrices [., rows, cols] of codes and scales of int8 or int4, in the accumulation type of `type`.
at::Tensor dequantized(int bits, const fvlm_tensor* codes, const fvlm_tensor* scales, int64_t cols,
                       at::ScalarType type);

// The type of saved statistics.
inline fvlm_dtype wide(fvlm_dtype dtype) {
  return dtype.bits == 64 ? dtype : fvlm_dtype{FVLM_FLOAT, 32, 1};
}

// out = value, or out += value. Rounds once.
void store(const at::Tensor& out, const at::Tensor& value, bool accumulate = false);

// out = a b, or out += a b, without a temporary where the types allow.
void store_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate = false);

// Llama's rotary embedding of the first `rotary_dim` dimensions of x [rows, heads, head_dim], which has an accumulation
// type.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& positions, int64_t rotary_dim, double theta, bool inverse);
// The same by frequencies [rotary_dim / 2], in radians per position.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& frequencies, bool inverse);

} // namespace fvlm::ops::reference
