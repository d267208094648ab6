// fp8_rounding.h: rounds matrices of bfloat16 to e4m3 with one scale for each row, or for each column, as FVLM_WITH_FP8
// says (fvlm/kernels.h).
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

// A matrix of e4m3 with contiguous rows, and the scale of each row: row i stands for scales[i] * values[i].
//
// With `pairs` (FVLM_FP8_PAIRS), each of the last numbers of a row is a sum, and a row has 3 * pairs numbers more. It
// ends in first, first, rest, rest of one operand of a product and in first, rest, first, rest of its weight, `pairs`
// numbers each: their product is that of the sums. A multiple of 8.
struct Fp8Rows {
  std::uint8_t* values = nullptr;
  float* scales = nullptr;
  std::int64_t pairs = 0;
  bool is_weight = false;

  __host__ __device__ std::int64_t stride(std::int64_t width) const { return width + 3 * pairs; }
};

// x [rows, width] -> [rows, width]
void round_rows_to_fp8(const Device& device, const Shape& shape, const Rows& x, const Fp8Rows& out);

// x [rows, width] -> its transpose [width, rows], whose rows end in pairs
void round_columns_to_fp8(const Device& device, const Shape& shape, const Rows& x, const Fp8Rows& out);

} // namespace fvlm::plugins
