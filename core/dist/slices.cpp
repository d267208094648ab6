#include "dist/slices.h"

#include <algorithm>

namespace fvlm::dist {
namespace {

constexpr int64_t alignment = 64; // of elements: a multiple of every vector's width

// The place nearest to `wanted` at which the buffer may be cut.
int64_t cut_near(int64_t wanted, int64_t elements, std::span<const Slice> whole) {
  const auto inside = std::find_if(whole.begin(), whole.end(),
                                   [&](const Slice& one) { return one.begin < wanted && wanted < one.end(); });
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

} // namespace fvlm::dist
