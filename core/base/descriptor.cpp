#include "base/descriptor.h"

#include "base/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace fvlm {

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

void fail_on_file(const std::filesystem::path& path, std::string_view action) {
  throw Error(ErrorKind::data, fmt::format("cannot {}: {}", action, std::strerror(errno))).at(path.string());
}

Descriptor open_to_read(const std::filesystem::path& path) {
  Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail_on_file(path, "open the file");
  return fd;
}

void fsync_folder(const std::filesystem::path& folder) {
  Descriptor fd(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || fsync(fd.get()) != 0) fail_on_file(folder, "flush the folder to disk");
}

} // namespace fvlm
