// gemm_weight_gradient.h: products on Hopper that sum over very many rows, as gradients of weights do.
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

struct WeightGradientShape {
  fvlm_dtype dtype, gradient_dtype;
  std::int64_t rows, inner, width;
};

// Whether it is made for such a shape, on a device for which there are such kernels (is_hopper()).
bool weight_gradient_supports(int multiprocessors, const WeightGradientShape& shape);
std::int64_t weight_gradient_workspace(int multiprocessors);

// d_weight = d_y^T x, d_bias = the sums of d_y over rows, or added to. d_y [rows, width] and x [rows, inner] have to be
// such as the copy engine takes.
struct WeightGradient {
  Rows d_y, x;
  void *d_weight, *d_bias; // contiguous [width, inner], [width]; d_bias may be NULL
  bool accumulate;
};
void weight_gradient_gemm(const Device& device, const WeightGradientShape& shape, const WeightGradient& operands,
                          void* workspace);

} // namespace fvlm::plugins
