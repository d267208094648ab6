// Sizes of packs come in few classes, so that packs that differ a little are of one: plugins are asked and prepared
// once for each, and recordings made.
#pragma once
#include <algorithm>
#include <cstdint>

namespace fvlm::model {

// `classes`: from 0 to `most`, so the padding is about half of one over that.
inline int64_t size_class(int64_t size, int64_t most, int64_t classes = 32) {
  const int64_t step = std::max<int64_t>(1, most / classes);
  return std::max(size, std::min(most, (size + step - 1) / step * step));
}

} // namespace fvlm::model
