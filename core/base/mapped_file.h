// A read-only memory-mapped file.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

namespace fvlm {

class MappedFile {
 public:
  // Throws Error(data) where the file is missing, unreadable or not a regular file. The bytes remain readable when the
  // file is deleted or replaced; but if another program truncates it, access ends this one (SIGBUS).
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  // Releases the physical memory of `part` of bytes(), once it has been copied. Reading it again reloads it from disk.
  void drop(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

} // namespace fvlm
