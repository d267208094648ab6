// SHA-256, for lock files and Plan hashes.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace fvlm {

class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  std::string hex(); // 64 lower-case digits; the object is spent afterwards

 private:
  void block(const uint8_t* data);
  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> pending_{};
  size_t pending_size_ = 0;
  uint64_t total_ = 0;
};

std::string sha256_hex(std::string_view bytes);
std::string sha256_file(const std::filesystem::path& path);

} // namespace fvlm
