// A file mapped into memory, read-only: its pages come from disk when they are touched and can be let go again.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

namespace fvlm {

class MappedFile {
 public:
  // Throws Error(data) when the file is missing, unreadable or no regular file. The bytes stay readable when the file
  // is deleted or replaced by a rename; a file that another program cuts short while it is mapped ends this one
  // (SIGBUS).
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  // Lets go of the memory behind `part` of bytes(), for whoever has copied it; reading it again brings it back.
  void drop(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

} // namespace fvlm
