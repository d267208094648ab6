// Draw: the random numbers of one sample, determined by the seed, the part of the data set and the index of the sample.
#pragma once
#include "base/random.h"

#include <cstdint>
#include <string_view>

namespace fvlm::shapes {

class Draw {
 public:
  Draw(uint64_t seed, std::string_view part, uint64_t sample) : stream_(seed, part), next_(sample << 24) {}

  int below(int count) {
    return static_cast<int>(uint64_t{stream_.bits(next_++)} * static_cast<uint64_t>(count) >> 32);
  }
  int between(int least, int most) { return least + below(most - least + 1); }
  template <class List>
  const auto& of(const List& list) {
    return list[static_cast<size_t>(below(static_cast<int>(std::size(list))))];
  }
  template <class List>
  void shuffle(List& list) {
    for (size_t left = std::size(list); left > 1; --left)
      std::swap(list[left - 1], list[static_cast<size_t>(below(static_cast<int>(left)))]);
  }

 private:
  RandomStream stream_;
  uint64_t next_;
};

} // namespace fvlm::shapes
