// XXH64 as its specification describes it (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), for little-endian machines.
#include "base/hash.h"

#include <bit>
#include <cstring>

namespace fvlm {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t prime1 = 0x9e3779b185ebca87, prime2 = 0xc2b2ae3d27d4eb4f, prime3 = 0x165667b19e3779f9,
                   prime4 = 0x85ebca77c2b2ae63, prime5 = 0x27d4eb2f165667c5;

template <class Word>
Word load(const std::byte* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

uint64_t mix(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * prime2, 31) * prime1;
}

} // namespace

Xxh64::Xxh64() : lanes_{prime1 + prime2, prime2, 0, 0 - prime1} {}

void Xxh64::stripe(const std::byte* at) {
  for (size_t i = 0; i < 4; ++i) lanes_[i] = mix(lanes_[i], load<uint64_t>(at + 8 * i));
}

void Xxh64::update(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  if (pending_size_ > 0 || bytes.size() < pending_.size()) {
    size_t taken = std::min(bytes.size(), pending_.size() - pending_size_);
    if (taken) std::memcpy(pending_.data() + pending_size_, bytes.data(), taken);
    pending_size_ += taken;
    bytes = bytes.subspan(taken);
    if (pending_size_ < pending_.size()) return;
    stripe(pending_.data());
    pending_size_ = 0;
  }
  for (; bytes.size() >= pending_.size(); bytes = bytes.subspan(pending_.size())) stripe(bytes.data());
  if (!bytes.empty()) std::memcpy(pending_.data(), bytes.data(), bytes.size());
  pending_size_ = bytes.size();
}

uint64_t Xxh64::value() const {
  uint64_t hash = prime5;
  if (total_ >= pending_.size()) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (uint64_t lane : lanes_) hash = (hash ^ mix(0, lane)) * prime1 + prime4;
  }
  hash += total_;
  const std::byte *at = pending_.data(), *end = at + pending_size_;
  for (; end - at >= 8; at += 8) hash = std::rotl(hash ^ mix(0, load<uint64_t>(at)), 27) * prime1 + prime4;
  for (; end - at >= 4; at += 4) hash = std::rotl(hash ^ load<uint32_t>(at) * prime1, 23) * prime2 + prime3;
  for (; at < end; ++at) hash = std::rotl(hash ^ static_cast<uint64_t>(*at) * prime5, 11) * prime1;
  hash = (hash ^ hash >> 33) * prime2;
  hash = (hash ^ hash >> 29) * prime3;
  return hash ^ hash >> 32;
}

uint64_t xxh64(std::string_view text) {
  Xxh64 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.value();
}

} // namespace fvlm
