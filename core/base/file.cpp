#include "base/file.h"

#include "base/atomic_file.h"
#include "base/descriptor.h"
#include "base/error.h"

#include <cerrno>
#include <cstdlib>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fvlm {

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes) {
  Descriptor fd = open_to_read(path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) fail_on_file(path, "read the file's size");
  if (!S_ISREG(info.st_mode)) throw Error(ErrorKind::data, "not a regular file").at(path.string());
  if (static_cast<uint64_t>(info.st_size) > max_bytes)
    throw Error(ErrorKind::data, "the file has {} bytes; the limit is {}", info.st_size, max_bytes).at(path.string());
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t filled = 0;
  while (filled < content.size()) {
    ssize_t n = read(fd.get(), content.data() + filled, content.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_on_file(path, "read the file");
    if (n == 0) break; // truncated by somebody else in the meantime
    filled += static_cast<size_t>(n);
  }
  content.resize(filled);
  return content;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
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
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg == '/')
    return std::filesystem::path(xdg) / "fvlm-engine";
  const char* home = std::getenv("HOME");
  if (!home || *home != '/') {
    const passwd* person = getpwuid(geteuid());
    home = person ? person->pw_dir : nullptr;
  }
  if (!home || *home != '/')
    throw Error(ErrorKind::output, "no cache folder: this user has no home folder")
        .advise("set FVLM_CACHE to a folder");
  return std::filesystem::path(home) / ".cache" / "fvlm-engine";
}

} // namespace fvlm
