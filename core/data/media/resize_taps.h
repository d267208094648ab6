// The filter taps of a resize: which input pixels contribute to each output pixel of a line, and their weights.
#pragma once
#include "data/media/resize.h"

#include <cstdint>
#include <vector>

namespace fvlm {

// Weights are fixed-point numbers with this many fractional bits, as in Pillow.
constexpr int weight_bits = 22;

struct Taps {
  int64_t in = 0, out = 0; // lengths of the lines
  int64_t width = 0;       // weights a pixel, those of the longest, rounded up to a multiple of 4; zeros fill the rest
  std::vector<int32_t> first, count; // [out]
  std::vector<int32_t> weights;      // [out, width]

  // The weights for multiplications of 16-bit pairs: weight == upper * 2^11 + lower, and for each four of them the
  // pairs upper 0 and 1, upper 2 and 3, lower 0 and 1, lower 2 and 3. [out, width / 4, 4]
  static constexpr int lower_bits = 11;
  std::vector<int32_t> pairs;

  Taps(int64_t in, int64_t out, ResizeFilter filter = ResizeFilter::bicubic);
};

} // namespace fvlm
