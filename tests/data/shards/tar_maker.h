// Builds tar files byte by byte: valid ones, and ones that no program would write.
#pragma once
#include "base/file.h"
#include "base/scratch_folder.h"
#include "data/shards/grouping.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <unistd.h>

namespace fvlm::test {

namespace fs = std::filesystem;

using Folder = ScratchFolder; // a test's, which is also its cache

// Without fsync and rename, unlike write_file_atomic: tests write thousands of shards.
inline void write_bytes(const fs::path& path, std::string_view bytes) {
  FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr) << path;
  ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size()) << path;
  ASSERT_EQ(std::fclose(file), 0) << path;
}

// Sets the checksum that fits the header at `at`.
inline void seal(std::string& tar, size_t at) {
  std::memset(tar.data() + at + 148, ' ', 8);
  unsigned sum = 0;
  for (size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(tar[at + i]);
  std::string text = fmt::format("{:06o}", sum);
  std::memcpy(tar.data() + at + 148, text.c_str(), 7);
}

struct TarMaker {
  std::string bytes;

  static std::string octal(uint64_t size) { return fmt::format("{:011o}", size); }
  // Base 256, as GNU writes sizes from 8 GiB on.
  static std::string base256(uint64_t size, char first = '\x80') {
    std::string text(12, '\0');
    text[0] = first;
    for (int i = 0; i < 8; ++i) text[11 - i] = static_cast<char>(size >> 8 * i);
    return text;
  }

  // Returns the offset of the header.
  size_t header(std::string_view name, std::string_view size, char type = '0',
                std::string_view magic = std::string_view("ustar\00000", 8), std::string_view prefix = {}) {
    size_t at = bytes.size();
    bytes.append(512, '\0');
    auto put = [&](size_t where, std::string_view text) { bytes.replace(at + where, text.size(), text); };
    put(0, name.substr(0, 100));
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, size);
    put(136, "00000000000");
    bytes[at + 156] = type;
    put(257, magic);
    put(345, prefix);
    seal(bytes, at);
    return at;
  }

  void data(std::string_view content) {
    bytes += content;
    bytes.append((512 - bytes.size() % 512) % 512, '\0');
  }

  size_t file(std::string_view name, std::string_view content, char type = '0') {
    size_t at = header(name, octal(content.size()), type);
    data(content);
    return at;
  }

  std::string end() const { return bytes + std::string(1024, '\0'); }
};

inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

} // namespace fvlm::test
