// The two passes of a resize, as plain loops and with AVX2: the same integers in another order.
#pragma once
#include "data/media/resize_taps.h"

#include <cstdint>

namespace fvlm {

struct ResizeLoops {
  const char* name;
  // Lines of RGB pixels, in[lines, taps.in * 3] to out[lines, taps.out * 3]. May read up to resize_slack bytes past the
  // end of `in`.
  void (*across)(const Taps& taps, int64_t lines, const uint8_t* in, uint8_t* out);
  // Line `row` of the result from lines of `bytes` bytes each, the first of which is at `in`.
  void (*down)(const Taps& taps, int64_t row, const uint8_t* in, int64_t bytes, uint8_t* out);
};

constexpr int64_t resize_slack = 32;

const ResizeLoops& plain_resize_loops();
const ResizeLoops* avx2_resize_loops(); // nullptr: not on this processor
const ResizeLoops& fastest_resize_loops();

} // namespace fvlm
