// gemm_gelu.h: products on Hopper of short rows. What comes behind a product is computed while others are made:
// gelu, its derivative, or no more than bias and residual.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_rows.h"

namespace fvlm::plugins {

// How many elements are summed up in a product, and how wide results are.
struct FusedGemmShape {
  fvlm_dtype dtype;
  std::int64_t rows, inner, width;
};

// Whether there are kernels for this device; and for such operands, if the copy engine can read and write them all.
bool has_fused_gemms(fvlm_device device);
bool fused_gemm_supports(const FusedGemmShape& shape);
bool tma_compatible(fvlm_dtype dtype, std::initializer_list<Matrix> matrices);

// y = x weight^T + bias + residual, where the weight is [width, inner]; or x weight, where it is [inner, width], by
// rows.
struct FusedLinear {
  Matrix x, weight, y;
  void* bias = nullptr;
  Matrix residual{}; // may be in the memory of y
  bool weight_transposed = false;
};
void fused_linear(const Device& device, const FusedGemmShape& shape, const FusedLinear& operands);

// sum = x weight^T + bias, y = gelu of the sum as it is rounded. x [rows, inner], weight [width, inner].
struct FusedGeluForward {
  Matrix x, weight, sum, y; // a sum in y's memory is not kept
  void* bias = nullptr;     // NULL: none
};
void fused_gelu_forward(const Device& device, const FusedGemmShape& shape, const FusedGeluForward& operands);

// d_x = d_y weight * gelu's derivative at x. d_y [rows, inner], weight [inner, width], x and d_x [rows, width].
struct FusedGeluBackward {
  Matrix d_y, weight, x, d_x; // d_x may be in the memory of x
  float* sums = nullptr;      // NULL, or [parts, width] for parts of the sums of d_x over rows
};
void fused_gelu_backward(const Device& device, const FusedGemmShape& shape, const FusedGeluBackward& operands);
std::int64_t column_sum_parts(int multiprocessors, const FusedGemmShape& shape);

} // namespace fvlm::plugins
