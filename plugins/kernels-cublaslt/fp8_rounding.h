// fp8_rounding.h: rounds matrices of bfloat16 to e4m3 with one scale for each row, or for each column, as FVLM_WITH_FP8
// says (fvlm/kernels.h).
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

// A matrix of e4m3 with contiguous rows, and the scale of each row: row i stands for scales[i] * values[i].
struct Fp8Rows {
  std::uint8_t* values = nullptr;
  float* scales = nullptr;
};

// x [rows, width] -> [rows, width].
void round_rows_to_fp8(const Device& device, const Shape& shape, const Rows& x, const Fp8Rows& out);

// x [rows, width] -> its transpose [width, rows].
void round_columns_to_fp8(const Device& device, const Shape& shape, const Rows& x, const Fp8Rows& out);

} // namespace fvlm::plugins
