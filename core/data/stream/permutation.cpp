#include "data/stream/permutation.h"

#include "base/hash.h"
#include "base/random.h"

#include <bit>

namespace fvlm {

Permutation::Permutation(uint64_t size, uint64_t seed, std::string_view name)
    : size_(size), half_bits_((std::bit_width(size > 1 ? size - 1 : 1) + 1) / 2) {
  const uint64_t key = seed ^ xxh64(name);
  key_ = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

// A Feistel network over the next even number of bits, which is a bijection whatever its round function is.
uint64_t Permutation::scrambled(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint32_t round = 0; round < 4; ++round) {
    const uint64_t mixed =
        philox4x32({static_cast<uint32_t>(right), static_cast<uint32_t>(right >> 32), round, 0}, key_)[0];
    left ^= mixed & mask;
    std::swap(left, right);
  }
  return left << half_bits_ | right;
}

// Cycle walking: values outside the range are mapped again, fewer than three times on average.
uint64_t Permutation::at(uint64_t place) const {
  uint64_t value = scrambled(place);
  while (value >= size_) value = scrambled(value);
  return value;
}

} // namespace fvlm
