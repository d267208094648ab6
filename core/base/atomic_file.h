// Files and folders that appear whole or not at all: written beside, fsynced, renamed.
#pragma once
#include "base/new_file.h"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace fvlm {

// Until commit() the file at `path` is the old one, or none. Without commit() nothing stays behind.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  void flush();
  void write_through(std::span<const std::byte> bytes);
  std::filesystem::path path_;
  PartialFile beside_;
  std::vector<std::byte> pending_;
  bool committed_ = false;
};

// The same for a folder that does not exist yet: files are put into beside(), each with AtomicFile or fsynced.
class AtomicFolder {
 public:
  // Makes the folders above it. Throws Error(output) when there is something at `path` already.
  explicit AtomicFolder(std::filesystem::path path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& beside() const { return beside_->path; }
  void commit();

 private:
  std::filesystem::path path_;
  std::optional<PartialFile> beside_;
  bool committed_ = false;
};

} // namespace fvlm
