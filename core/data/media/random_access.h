// RandomAccess: a file or a member of a shard that can be read at any offset.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

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

class BytesInMemory final : public RandomAccess {
 public:
  // `owner`: what the bytes belong to; null: something that outlives this.
  BytesInMemory(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> into) const override {
    std::memcpy(into.data(), bytes_.data() + offset, into.size());
  }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

} // namespace fvlm
