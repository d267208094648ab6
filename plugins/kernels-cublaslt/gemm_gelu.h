// gemm_gelu.h: matrix products for Hopper with a fused epilogue: bias and residual, bias and GELU, or GELU's derivative
// and column sums. The epilogue of one tile overlaps with the product of the next.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_rows.h"
#include "common/gelu_form.h"

namespace fvlm::plugins {

// inner: the summed dimension; width: columns of the result.
struct FusedGemmShape {
  fvlm_dtype dtype;
  std::int64_t rows, inner, width;
  GeluForm form;
};

// Whether the device has these kernels, whether they support the shape, and whether TMA can access all operands.
bool has_fused_gemms(fvlm_device device);
bool fused_gemm_supports(const FusedGemmShape& shape);
// Whether a block keeps its columns of the weight in shared memory: with a short inner dimension, and exact GELU if
// any. Other products are those of gemm_streamed.cu, with GELU alone.
bool fused_gemm_is_resident(const FusedGemmShape& shape);
bool tma_compatible(fvlm_dtype dtype, std::initializer_list<Matrix> matrices);

// y = x weight^T + bias + residual with weight [width, inner]; or, if weight_transposed, y = x weight with weight
// [inner, width].
struct FusedLinear {
  Matrix x, weight, y;
  void* bias = nullptr;
  Matrix residual{}; // may be the same memory as y
  bool weight_transposed = false;
};
void fused_linear(const Device& device, const FusedGemmShape& shape, const FusedLinear& operands);

// sum = x weight^T + bias; y = gelu of the rounded sum. x [rows, inner], weight [width, inner].
struct FusedGeluForward {
  Matrix x, weight, sum, y; // if sum and y are the same memory, the sum is not kept
  void* bias = nullptr;     // NULL: no bias
};
void fused_gelu_forward(const Device& device, const FusedGemmShape& shape, const FusedGeluForward& operands);

// d_x = d_y weight * gelu'(x). d_y [rows, inner], weight [inner, width], x and d_x [rows, width].
struct FusedGeluBackward {
  Matrix d_y, weight, x, d_x; // d_x may be the same memory as x
  float* sums = nullptr;      // partial column sums of d_x, [parts, width]; NULL: not required
};
void fused_gelu_backward(const Device& device, const FusedGemmShape& shape, const FusedGeluBackward& operands);
std::int64_t column_sum_parts(int multiprocessors, const FusedGemmShape& shape);

// The products that are not resident.
bool streamed_gemm_supports(const FusedGemmShape& shape);
void streamed_gelu_forward(const Device& device, const FusedGemmShape& shape, const FusedGeluForward& operands);
void streamed_gelu_backward(const Device& device, const FusedGemmShape& shape, const FusedGeluBackward& operands);
std::int64_t streamed_sum_parts(const FusedGemmShape& shape);

} // namespace fvlm::plugins
