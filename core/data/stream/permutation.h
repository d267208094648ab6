// Permutation: a pseudorandom permutation of n items, computed index by index without storing it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace fvlm {

class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed, std::string_view name);
  // The item at `place`; both are in [0, size).
  uint64_t at(uint64_t place) const;

 private:
  uint64_t scrambled(uint64_t value) const;
  uint64_t size_;
  int half_bits_;
  std::array<uint32_t, 2> key_;
};

} // namespace fvlm
