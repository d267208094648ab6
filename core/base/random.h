// Counter-based random numbers: a pure function of (seed, name, index), independent of the order of calls.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace fvlm {

// Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The random numbers for one purpose, such as the initialization of a tensor. Streams of different seeds or names are
// independent.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name);
  uint32_t bits(uint64_t index) const;
  double uniform(uint64_t index) const; // within [0, 1), on a grid of 2^-32
  double normal(uint64_t index) const;  // mean 0, variance 1 (Box-Muller)

 private:
  std::array<uint32_t, 4> block(uint64_t number) const;
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 2> name_;
};

} // namespace fvlm
