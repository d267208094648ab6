// How a flat buffer is divided among ranks.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace fvlm::dist {

struct Slice {
  int64_t begin = 0, length = 0;
  int64_t end() const { return begin + length; }
  bool operator==(const Slice&) const = default;
};

// One slice of a buffer of so many elements for each rank, in order and of nearly equal length. No slice begins inside
// one of `whole`, which are sorted and do not overlap; where it can, it begins at a multiple of 64 elements.
std::vector<Slice> divide(int64_t elements, int64_t ranks, std::span<const Slice> whole = {});

// What of each slice is inside a part of the buffer, counted from the beginning of that part.
std::vector<Slice> inside(std::span<const Slice> slices, const Slice& part);

} // namespace fvlm::dist
