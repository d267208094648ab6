// A file descriptor that is closed by its destructor, and errors of file operations.
#pragma once
#include "base/error.h"

#include <filesystem>
#include <string_view>
#include <utility>

namespace fvlm {

// A file would be larger than the process may write (ulimit -f), which waiting does not change.
class FileLimitError : public Error {
 public:
  using Error::Error;
};

// There is no room on the disk, or none for this user.
class DiskFullError : public Error {
 public:
  using Error::Error;
};

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); } // the caller becomes the owner
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Throws Error(data) "cannot <action>: <errno in words>" at `path`.
[[noreturn]] void fail_on_file(const std::filesystem::path& path, std::string_view action);
// The same as Error(output), for writing. Where the file is beyond the limit of the process, it is a FileLimitError,
// and where the disk is full, a DiskFullError.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, std::string_view action);

// Opens without blocking, also a named pipe that has no writer; the caller has to check what kind of file it is.
Descriptor open_to_read(const std::filesystem::path& path);

// Makes creations, renames and removals in `folder` durable.
void fsync_folder(const std::filesystem::path& folder);

} // namespace fvlm
