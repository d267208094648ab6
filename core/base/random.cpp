#include "base/random.h"

#include "base/hash.h"

#include <cmath>
#include <numbers>

namespace fvlm {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t left = uint64_t{0xd2511f53} * counter[0], right = uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(right),
               static_cast<uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(left)};
    key[0] += 0x9e3779b9;
    key[1] += 0xbb67ae85;
  }
  return counter;
}

RandomStream::RandomStream(uint64_t seed, std::string_view name)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {
  uint64_t hash = xxh64(name);
  name_ = {static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32)};
}

std::array<uint32_t, 4> RandomStream::block(uint64_t number) const {
  return philox4x32({static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), name_[0], name_[1]}, key_);
}

uint32_t RandomStream::bits(uint64_t index) const {
  return block(index / 4)[index % 4];
}

double RandomStream::uniform(uint64_t index) const {
  return bits(index) * 0x1p-32;
}

double RandomStream::normal(uint64_t index) const {
  auto words = block(index / 4);
  size_t pair = index % 4 / 2 * 2;
  double radius = std::sqrt(-2 * std::log((words[pair] + 0.5) * 0x1p-32)); // never the logarithm of 0
  double angle = 2 * std::numbers::pi * words[pair + 1] * 0x1p-32;
  return radius * (index % 2 ? std::sin(angle) : std::cos(angle));
}

} // namespace fvlm
