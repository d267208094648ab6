#include "model/bidirectional_blocks.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <bit>
#include <vector>

namespace fvlm::model {

ops::BidirectionalBlocks bidirectional_blocks(std::span<const int32_t> last, int64_t usual, at::Device device) {
  constexpr int64_t unknown = -1;
  std::vector<int64_t> rows, keys, place(last.size(), unknown), key_place(last.size(), unknown);
  std::vector<int32_t> ends{0}, key_ends{0};
  int64_t longest = 0;
  for (int64_t first = 0; first < std::ssize(last); ++first) {
    const int64_t end = last[static_cast<size_t>(first)];
    if (end == first) continue;
    for (int64_t row = end; row >= first; --row) {
      place[static_cast<size_t>(row)] = std::ssize(rows);
      rows.push_back(row);
      if (row == first) continue;
      key_place[static_cast<size_t>(row)] = std::ssize(keys);
      keys.push_back(row);
    }
    ends.push_back(static_cast<int32_t>(rows.size()));
    key_ends.push_back(static_cast<int32_t>(keys.size()));
    longest = std::max(longest, end - first + 1);
    first = end;
  }
  const auto up_to = [](int64_t count, int64_t unit) { return std::max<int64_t>(1, (count + unit - 1) / unit) * unit; };
  constexpr int64_t step = 64, padding = 8; // of lengths; one row at least, and as many as keep rows aligned
  const int64_t capacity = up_to(std::ssize(rows), std::max<int64_t>(usual, 1)) + padding;
  rows.resize(static_cast<size_t>(capacity), 0), keys.resize(static_cast<size_t>(capacity), 0);
  std::ranges::replace(place, unknown, capacity - 1), std::ranges::replace(key_place, unknown, capacity - 1);
  const size_t bounds = std::bit_ceil(std::max<size_t>(ends.size() - 1, 1)) + 1;
  ends.resize(bounds, ends.back()), key_ends.resize(bounds, key_ends.back());
  const auto on_device = [device](const auto& values) { return at::tensor(values).to(device); };
  return {on_device(rows),
          on_device(keys),
          at::tensor(ends, at::kInt).to(device),
          at::tensor(key_ends, at::kInt).to(device),
          on_device(place),
          on_device(key_place),
          up_to(longest, step)};
}

} // namespace fvlm::model
