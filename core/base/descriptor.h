// An open file descriptor that closes itself, for the files of this room.
#pragma once
#include <filesystem>
#include <string_view>
#include <utility>

namespace fvlm {

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
  int release() { return std::exchange(fd_, -1); } // the caller closes it
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Throws Error(data) "cannot <action>: <errno in words>" at `path`.
[[noreturn]] void fail_on_file(const std::filesystem::path& path, std::string_view action);
// The same as Error(output), for what cannot be written.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, std::string_view action);

// Never waits: a pipe without a writer opens too, so the caller looks at what it has got.
Descriptor open_to_read(const std::filesystem::path& path);

// Makes what was created, renamed or removed in `folder` survive a power cut.
void fsync_folder(const std::filesystem::path& folder);

} // namespace fvlm
