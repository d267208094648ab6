#include "dist/slices.h"

#include <algorithm>

namespace fvlm::dist {
namespace {

constexpr int64_t alignment = 64; // of elements: a multiple of every vector's width

// The place nearest to `wanted` at which the buffer may be cut.
int64_t cut_near(int64_t wanted, int64_t elements, std::span<const Slice> whole) {
  const auto inside =
      std::ranges::find_if(whole, [&](const Slice& one) { return one.begin < wanted && wanted < one.end(); });
  if (inside == whole.end()) return wanted;
  const bool before = wanted - inside->begin <= inside->end() - wanted;
  return before ? inside->begin : std::min(inside->end(), elements);
}

} // namespace

std::vector<Slice> divide(int64_t elements, int64_t ranks, std::span<const Slice> whole) {
  std::vector<Slice> slices;
  int64_t begin = 0;
  for (int64_t rank = 1; rank <= ranks; ++rank) {
    int64_t end = elements;
    if (rank < ranks) end = cut_near(elements * rank / ranks / alignment * alignment, elements, whole);
    end = std::max(begin, end);
    slices.push_back({begin, end - begin});
    begin = end;
  }
  return slices;
}

std::vector<Slice> inside(std::span<const Slice> slices, const Slice& part) {
  std::vector<Slice> found;
  for (const Slice& slice : slices) {
    const int64_t begin = std::clamp(slice.begin, part.begin, part.end()),
                  end = std::clamp(slice.end(), part.begin, part.end());
    found.push_back({begin - part.begin, end - begin});
  }
  return found;
}

} // namespace fvlm::dist
