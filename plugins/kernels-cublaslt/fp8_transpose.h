// fp8_transpose.h: the operands of a weight gradient in e4m3, of matrices that were rounded by rows.
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

// from [rows, width] -> to [width, rows], both multiples of 16. Each row is multiplied by its factor, a power of two of
// at most 1, and rounded again; factors NULL: by 1.
void transpose_fp8(const Device& device, const std::uint8_t* from, std::uint8_t* to, const float* factors,
                   std::int64_t rows, std::int64_t width);

// A sum over rows i of terms with the scales a[i] and b[i], as one with a single scale, the largest a[i] b[i]: factors
// are a[i] b[i] / largest, of_rows are all the largest, and of_columns are all 1.
struct JoinedScales {
  float *factors, *of_rows, *of_columns;
  std::int64_t rows, columns;
};
void join_fp8_scales(const Device& device, const float* a, const float* b, std::int64_t count, const JoinedScales& out);

} // namespace fvlm::plugins
