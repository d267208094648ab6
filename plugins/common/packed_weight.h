// packed_weight.h: how codes and scales of a quantized weight lie (fvlm/quantizer.h).
#pragma once

#include <fvlm/fvlm.hpp>

#include <cstdint>

namespace fvlm::plugins {

// A packed weight of either scheme.
struct PackedWeight {
  int bits; // 8 or 4
  std::int64_t rows, cols;
  std::int64_t row_bytes;        // of the codes of a row
  std::int64_t group, groups;    // columns that share a scale, and scales of a row
  std::uint8_t* codes = nullptr; // int8 codes as bytes
  float* scales = nullptr;
};

inline PackedWeight packed_shape(int bits, std::int64_t rows, std::int64_t cols) {
  const std::int64_t group = bits == 8 ? cols : sdk::int4_group(cols);
  const std::int64_t groups = bits == 8 ? 1 : cols == 0 ? 0 : cols / group;
  return {bits, rows, cols, bits == 8 ? cols : (cols + 7) / 8 * 4, group, groups};
}

} // namespace fvlm::plugins
