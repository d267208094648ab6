// Files and folders that appear complete or not at all: written under a temporary name, fsynced, renamed.
#pragma once
#include "base/new_file.h"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace fvlm {

// Replaces the file at `path` in commit(). Without commit(), nothing is changed and nothing is left behind.
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
  PartialFile temporary_;
  std::vector<std::byte> pending_;
  bool committed_ = false;
};

// The same for a folder that does not exist yet. The caller writes its files into temporary_path(), each with
// AtomicFile or fsynced.
class AtomicFolder {
 public:
  // Creates the parent folders. Throws Error(output) where `path` exists already.
  explicit AtomicFolder(std::filesystem::path path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& temporary_path() const { return temporary_->path; }
  void commit();

 private:
  std::filesystem::path path_;
  std::optional<PartialFile> temporary_;
  bool committed_ = false;
};

} // namespace fvlm
