// RandomAccess: a file or a member of a shard that can be read at any offset.
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
  // Fills `into`; the range must lie within size(). Throws Error on failure.
  virtual void read(uint64_t offset, std::span<std::byte> into) const = 0;

 protected:
  RandomAccess() = default;
  RandomAccess(const RandomAccess&) = default;
  RandomAccess& operator=(const RandomAccess&) = default;
};

} // namespace fvlm
