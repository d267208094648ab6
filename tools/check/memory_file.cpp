#include "check/memory_file.h"

#include "base/error.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fvlm::check {
namespace {

// Above the descriptors of a child process that it becomes.
constexpr int min_descriptor = 16;

int make() {
  const Descriptor low(memfd_create("output", MFD_CLOEXEC));
  const int descriptor = low ? fcntl(low.get(), F_DUPFD_CLOEXEC, min_descriptor) : -1;
  if (descriptor < 0) throw Error(ErrorKind::device, "cannot create a file in memory: {}", std::strerror(errno));
  return descriptor;
}

} // namespace

MemoryFile::MemoryFile() : descriptor_(make()) {}

std::string MemoryFile::text(size_t max_size) const {
  struct stat status {}; // not lseek(): the other process has the same position
  fstat(descriptor_.get(), &status);
  std::string bytes(std::min(static_cast<size_t>(status.st_size), max_size), 0);
  const off_t begin = status.st_size - static_cast<off_t>(bytes.size());
  const ssize_t count = pread(descriptor_.get(), bytes.data(), bytes.size(), begin);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return bytes;
}

} // namespace fvlm::check
