// gemm_few_rows.h: matrix products of up to 32 rows, such as those of a step of generation, with what stands around
// them in a decoder's layer: the norm before, SwiGLU or a residual behind.
#pragma once

#include "gemm_skinny.h"

namespace fvlm::plugins {

struct FewRowsGemm {
  Rows x, weight, y;
  const void* bias = nullptr;        // [width]; with SwiGLU [2 width]
  Rows residual{};                   // data NULL: none
  const void* norm_weight = nullptr; // [inner]; NULL: x is not normalized
  float epsilon = 0;
  // The weight is [2 width, inner], gate before up, and y = silu(gate) * up.
  bool swiglu = false;
  // Whether the kernel may start, and read the weight, while the one before it on the stream is running. Only where
  // that is no kernel that writes the weight.
  bool starts_early = false;
};

// 16 bits, weights as they are; more than eight rows only with small weights, or with large ones on Hopper. With SwiGLU
// the width is that of the weight. Operands have to be readable 16 bytes at a time.
bool few_rows_supports(const SkinnyGemmShape& shape, bool is_hopper);
bool few_rows_aligned(const FewRowsGemm& operands);
void few_rows_gemm(const Device& device, const SkinnyGemmShape& shape, const FewRowsGemm& operands);

// Those of large weights in bfloat16 on Hopper (gemm_few_rows_tiled.cu).
bool tiled_few_rows_supports(const SkinnyGemmShape& shape);
bool tiled_few_rows_takes(const Device& device, const SkinnyGemmShape& shape, const FewRowsGemm& operands);
void tiled_few_rows_gemm(const Device& device, const SkinnyGemmShape& shape, const FewRowsGemm& operands);

// Products of up to eight rows with bias and residual alone, among the skinny ones.
bool few_rows_are_skinny(const SkinnyGemmShape& shape);
bool few_rows_takes(const SkinnyGemmShape& shape, const SkinnyGemm& operands);
inline FewRowsGemm few_rows_of(const SkinnyGemm& o) {
  return {o.x, o.weight, o.y, o.bias, o.residual};
}

} // namespace fvlm::plugins
