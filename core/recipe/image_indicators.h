// Of a model that has learned rows around an image and between its tiles, Ovis2: the rows that each frame has for texts
// to name, behind its own. They are the same for all frames.
#pragma once
#include <cstdint>

namespace fvlm {

struct ImageIndicators {
  // Before the whole image, between it and the tiles, between tiles of a line, between lines, and behind all.
  static constexpr int64_t start = 0, grid = 1, column = 2, row = 3, end = 4, count = 5;
};

} // namespace fvlm
