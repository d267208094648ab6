// Helpers of the float64 formulas. Everything here is plain ATen; none of the engine's operations is used.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <vector>

namespace fvlm::check {

// Gradients of the inputs, by autograd; zeros where an output does not depend on an input.
std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                                  const std::vector<at::Tensor>& d_outputs);

// A copy that requires a gradient.
at::Tensor leaf(const at::Tensor& content, at::ScalarType dtype);

// Normally distributed numbers, the same for the same seed on every machine. Those of large tensors repeat.
at::Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype, double scale = 1);
// Root of the mean square; NaN left out.
double root_mean_square(const at::Tensor& values);
// Whole numbers in [0, limit).
at::Tensor random_integers(at::IntArrayRef shape, uint64_t seed, int64_t limit, at::ScalarType dtype);

// Llama's rotation of the first rotary_dim dimensions of x [rows, heads, head_dim].
at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, int64_t rotary_dim, double theta,
                  bool inverse = false);
at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& frequencies, bool inverse);

// Where statistics and angles are computed: float32 at least.
inline at::ScalarType at_least_float(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

} // namespace fvlm::check
