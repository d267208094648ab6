// Rounds sizes of packs up to a few size classes, so that plugins prepare and CUDA graphs are captured once for each
// class instead of for each pack.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

namespace fvlm::model {

// `classes`: from 0 to `max_size`, so the padding is about half of one over that.
inline int64_t size_class(int64_t size, int64_t max_size, int64_t classes = 32) {
  const int64_t step = std::max<int64_t>(1, max_size / classes);
  return std::max(size, std::min(max_size, (size + step - 1) / step * step));
}

// The same for numbers of rows without a known maximum: no more than a quarter of the result is padding, and there are
// four classes between a power of two and the next.
inline int64_t row_class(int64_t rows) {
  const auto step = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)) / 8);
  return step < 2 ? rows : (rows + step - 1) / step * step;
}

} // namespace fvlm::model
