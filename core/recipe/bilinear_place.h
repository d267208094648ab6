// Bilinear resampling along one axis, as torch's interpolate(mode = "bilinear", align_corners = False) does it without
// antialiasing.
#pragma once
#include <algorithm>
#include <cstdint>

namespace fvlm {

// The two of `from` inputs whose mean is output number i of `count`.
struct BilinearPlace {
  int64_t first, second;
  float share; // of the second

  BilinearPlace(int64_t i, int64_t count, int64_t from) {
    const float step = static_cast<float>(from) / static_cast<float>(count),
                at = std::max(0.0f, step * (static_cast<float>(i) + 0.5f) - 0.5f);
    first = std::min(static_cast<int64_t>(at), from - 1);
    second = std::min(first + 1, from - 1);
    share = at - static_cast<float>(first);
  }
};

} // namespace fvlm
