// fp8_strips.h: rounding to e4m3 and transposing by clusters that read each number once.
#pragma once

#include "fp8_rounding.h"

namespace fvlm::plugins {

// x [rows, width] -> its transpose [width, rows], with a scale for each row, or each column, of x. false, and nothing
// done, where rows of x do not start at multiples of 16 bytes, their number is no multiple of 16, or one scale is of
// more numbers than a cluster holds: 8,192 of a row, 20,480 of a column.
bool round_strips_of_rows(const Device& device, const Shape& shape, const Rows& x, const Fp8Rows& out);
bool round_strips_of_columns(const Device& device, const Shape& shape, const Rows& x, const Fp8Rows& out);

} // namespace fvlm::plugins
