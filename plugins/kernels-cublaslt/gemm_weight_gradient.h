// gemm_weight_gradient.h: weight gradients for Hopper: matrix products that sum over very many rows (split-K), with the
// bias gradient computed on the way.
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

struct WeightGradientShape {
  fvlm_dtype dtype, gradient_dtype;
  std::int64_t rows, inner, width;
};

// Whether the kernels support the shape, on a device that has them (is_hopper()).
bool weight_gradient_supports(int multiprocessors, const WeightGradientShape& shape);
std::int64_t weight_gradient_workspace(int multiprocessors);

// d_weight = d_y^T x and d_bias = column sums of d_y, or accumulated into. d_y [rows, width] and x [rows, inner] have
// to be TMA-compatible.
struct WeightGradient {
  Rows d_y, x;
  void *d_weight, *d_bias; // contiguous [width, inner] and [width]; d_bias may be NULL
  bool accumulate;
};
void weight_gradient_gemm(const Device& device, const WeightGradientShape& shape, const WeightGradient& operands,
                          void* workspace);

} // namespace fvlm::plugins
