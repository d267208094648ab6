// Rounds sizes of packs up to a few size classes, so that plugins prepare and CUDA graphs are captured once for each
// class instead of for each pack.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

namespace fvlm::model {

// `classes`: from 0 to `max_size`, were they equally wide. Below a half of `max_size` they are half as wide, below a
// quarter a quarter, and so on, so that the padding of a small pack is small as well.
inline int64_t size_class(int64_t size, int64_t max_size, int64_t classes = 32) {
  int64_t step = std::max<int64_t>(1, max_size / classes);
  for (int64_t limit = max_size / 2; size <= limit && step > 1; limit /= 2) step = (step + 1) / 2;
  return std::max(size, std::min(max_size, (size + step - 1) / step * step));
}

// The same for numbers of rows without a known maximum: no more than a quarter of the result is padding, and there are
// four classes between a power of two and the next.
inline int64_t row_class(int64_t rows) {
  const auto step = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)) / 8);
  return step < 2 ? rows : (rows + step - 1) / step * step;
}

} // namespace fvlm::model
