// SHA-256, for lock files and hashes of Plans; XXH64, for checksums of tensors and for hashing names.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace fvlm {

class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  std::string hex(); // 64 lower-case digits; finalizes, so that the object cannot be used afterwards

 private:
  void block(const uint8_t* data);
  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> pending_{};
  size_t pending_size_ = 0;
  uint64_t total_ = 0;
};

std::string sha256_hex(std::string_view bytes);
std::string sha256_file(const std::filesystem::path& path);

// XXH64 with seed 0: detects corruption, but does not protect against an adversary.
class Xxh64 {
 public:
  Xxh64();
  void update(std::span<const std::byte> bytes);
  uint64_t value() const; // of all bytes so far

 private:
  void stripe(const std::byte* at);
  std::array<uint64_t, 4> lanes_;
  std::array<std::byte, 32> pending_{};
  size_t pending_size_ = 0;
  uint64_t total_ = 0;
};

uint64_t xxh64(std::string_view text);

} // namespace fvlm
