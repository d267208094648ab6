#include "base/file.h"

#include "base/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fvlm {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view action) {
  throw Error(ErrorKind::data, fmt::format("cannot {}: {}", action, std::strerror(errno))).at(path.string());
}

void fsync_folder(const std::filesystem::path& folder) {
  Descriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || fsync(fd.get()) != 0) fail(folder, "flush the folder to disk");
}

} // namespace

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes) {
  Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)); // a pipe without a writer would hang
  if (!fd) fail(path, "open the file");
  struct stat info;
  if (fstat(fd.get(), &info) != 0) fail(path, "read the file's size");
  if (!S_ISREG(info.st_mode)) throw Error(ErrorKind::data, "not a regular file").at(path.string());
  if (static_cast<uint64_t>(info.st_size) > max_bytes)
    throw Error(ErrorKind::data, fmt::format("{} bytes, more than the {} allowed here", info.st_size, max_bytes))
        .at(path.string());
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t filled = 0;
  while (filled < content.size()) {
    ssize_t n = read(fd.get(), content.data() + filled, content.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "read the file");
    if (n == 0) break; // truncated while we read
    filled += static_cast<size_t>(n);
  }
  content.resize(filled);
  return content;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path beside = path;
  beside += fmt::format(".partial-{}", getpid());
  {
    Descriptor fd(open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd) fail(beside, "create the file");
    size_t written = 0;
    while (written < content.size()) {
      ssize_t n = write(fd.get(), content.data() + written, content.size() - written);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        int error = errno;
        unlink(beside.c_str());
        errno = error;
        fail(path, "write the file");
      }
      written += static_cast<size_t>(n);
    }
    if (fsync(fd.get()) != 0) fail(beside, "flush the file to disk");
  }
  if (rename(beside.c_str(), path.c_str()) != 0) fail(path, "move the finished file into place");
  fsync_folder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

bool is_below(const std::filesystem::path& path, const std::filesystem::path& folder) {
  auto inner = std::filesystem::canonical(path), outer = std::filesystem::canonical(folder);
  auto mismatch = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return mismatch.first == outer.end();
}

std::filesystem::path program_folder() {
  return std::filesystem::canonical("/proc/self/exe").parent_path();
}

std::filesystem::path cache_folder() {
  if (const char* own = std::getenv("FVLM_CACHE"); own && *own) return own;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg) return std::filesystem::path(xdg) / "fvlm-engine";
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home && *home ? home : "/tmp") / ".cache" / "fvlm-engine";
}

} // namespace fvlm
