#include "base/descriptor.h"

#include "base/path_hint.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace fvlm {

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

void fail_on_file(const std::filesystem::path& path, std::string_view action) {
  throw Error(ErrorKind::data, "cannot {}: {}", action, std::strerror(errno)).at(path.string());
}

void fail_to_write(const std::filesystem::path& path, std::string_view action) {
  if (errno == EFBIG) {
    FileLimitError error(ErrorKind::output, "cannot {}: {}", action, std::strerror(errno));
    error.at(path.string()).advise("raise the limit of the size of files (ulimit -f), or write to another file system");
    throw error;
  }
  if (errno == ENOSPC || errno == EDQUOT) {
    DiskFullError error(ErrorKind::output, "cannot {}: {}", action, std::strerror(errno));
    error.at(path.string());
    throw error;
  }
  throw Error(ErrorKind::output, "cannot {}: {}", action, std::strerror(errno)).at(path.string());
}

Descriptor open_to_read(const std::filesystem::path& path) {
  Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd) return fd;
  const int code = errno;
  if (auto hint = hint_on_home(path); !hint.empty() && code == ENOENT)
    throw Error(ErrorKind::data, "no such file").at(path.string()).advise(std::move(hint));
  throw Error(ErrorKind::data, "cannot open the file: {}", std::strerror(code))
      .at(path.string())
      .advise(code == ENOENT ? with_start_of(path) : "");
}

void fsync_folder(const std::filesystem::path& folder) {
  Descriptor fd(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || fsync(fd.get()) != 0) fail_to_write(folder, "flush the folder to disk");
}

} // namespace fvlm
