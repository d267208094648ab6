// gemm_skinny.h: products of few rows, which take no longer than it takes to fetch the weight.
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

struct SkinnyGemmShape {
  fvlm_dtype dtype; // of 16 bits
  std::int64_t rows, inner, width;
  bool weight_transposed = false; // the weight is [inner, width], as an input gradient has it; else [width, inner]
};

// y = x weight^T + bias + residual + rest, or x weight where it lies across. What has no data is not there.
struct SkinnyGemm {
  Rows x, weight, y;
  const void* bias = nullptr;                    // [width]
  Rows residual, compensation, y_compensation{}; // y_rest: what y loses by rounding
  bool gelu = false;                             // y = gelu of the sum as it is rounded
  Rows sum{};                                    // where that is kept
  Rows gelu_input{};                             // y is multiplied by gelu's derivative there
  GradientSums sums{};                           // of y over rows
};

// Whether it is made for such a product, and for such operands: of those with gelu's derivative where it can sum rows,
// too, whether that is asked or not, so that y has the same bits. With y_rest it takes others.
bool skinny_gemm_supports(const Device& device, const SkinnyGemmShape& shape);
bool skinny_gemm_takes(const Device& device, const SkinnyGemmShape& shape, const SkinnyGemm& operands);

void skinny_gemm(const Device& device, const SkinnyGemmShape& shape, const SkinnyGemm& operands);

} // namespace fvlm::plugins
