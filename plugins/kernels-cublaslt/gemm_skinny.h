// gemm_skinny.h: matrix products of few rows (skinny GEMM), such as those of the coarse decoder. They take little
// longer than reading the weight from memory.
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

struct SkinnyGemmShape {
  fvlm_dtype dtype; // 16 bits
  std::int64_t rows, inner, width;
  bool weight_transposed = false; // the weight is [inner, width], as for an input gradient; otherwise [width, inner]
};

// y = x weight^T + bias + residual + compensation, or x weight if weight_transposed. Operands without data are left
// out.
struct SkinnyGemm {
  Rows x, weight, y;
  const void* bias = nullptr;                    // [width]
  Rows residual, compensation, y_compensation{}; // y_compensation: what y loses by rounding
  bool gelu = false;                             // y = gelu of the rounded sum
  Rows sum{};                                    // where the rounded sum is stored
  Rows gelu_input{};                             // y is multiplied by the derivative of GELU at this input
  GradientSums sums{};                           // column sums of y
};

// Whether the kernels support the shape, and these operands. With gelu_input they only take products whose column sums
// they can compute as well, whether those are required or not, so that y has the same bits in both cases. With
// y_compensation they take all other shapes too.
bool skinny_gemm_supports(const Device& device, const SkinnyGemmShape& shape);
bool skinny_gemm_takes(const Device& device, const SkinnyGemmShape& shape, const SkinnyGemm& operands);

void skinny_gemm(const Device& device, const SkinnyGemmShape& shape, const SkinnyGemm& operands);

} // namespace fvlm::plugins
