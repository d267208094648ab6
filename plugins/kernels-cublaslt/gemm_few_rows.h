// gemm_few_rows.h: matrix products of up to eight rows, such as those of a step of generation.
#pragma once

#include "gemm_skinny.h"

namespace fvlm::plugins {

// Products with bias and residual alone, whose operands can be read 16 bytes at a time.
bool few_rows_takes(const SkinnyGemmShape& shape, const SkinnyGemm& operands);
bool few_rows_supports(const SkinnyGemmShape& shape);

void few_rows_gemm(const Device& device, const SkinnyGemmShape& shape, const SkinnyGemm& operands);

} // namespace fvlm::plugins
