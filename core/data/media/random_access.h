// RandomAccess: bytes that lie somewhere, in a shard say, read from any place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace fvlm {

// [any thread]
class RandomAccess {
 public:
  virtual ~RandomAccess() = default;
  virtual uint64_t size() const = 0;
  // All of `into`, which the caller keeps within size(). Throws Error where that fails.
  virtual void read(uint64_t offset, std::span<std::byte> into) const = 0;

 protected:
  RandomAccess() = default;
  RandomAccess(const RandomAccess&) = default;
  RandomAccess& operator=(const RandomAccess&) = default;
};

} // namespace fvlm
