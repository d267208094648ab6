#include "base/new_file.h"

#include "base/error.h"
#include "base/path_hint.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

constexpr const char* partial_suffix = ".partial-";
constexpr int max_tries = 100; // each with another random name

fs::path partial_name(const fs::path& path) {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) fail_to_write(path, "choose a temporary name");
  fs::path out = path;
  out += fmt::format("{}{:016x}", partial_suffix, number);
  return out;
}

int open_folder(const fs::path& folder) {
  return open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// Would otherwise create a folder named ~ in the working folder.
void refuse_unexpanded_home(const fs::path& folder) {
  if (auto hint = hint_on_home(folder); !hint.empty() && !fs::exists(*folder.begin()))
    throw Error(ErrorKind::output, "there is no folder '~'").at(folder.string()).advise(std::move(hint));
}

// Whether `folder` is still the one that was opened: another process may have removed it before it was locked.
bool is_at(const fs::path& folder, const Descriptor& fd) {
  struct stat held, named;
  return fstat(fd.get(), &held) == 0 && lstat(folder.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

// Removes temporary folders for `path` of killed processes: those of this user that are not locked.
void remove_left_behind(const fs::path& path) {
  const std::string prefix = path.filename().string() + partial_suffix;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path.has_parent_path() ? path.parent_path() : ".", ignored)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    const Descriptor fd(open_folder(entry.path()));
    struct stat info;
    if (fd && fstat(fd.get(), &info) == 0 && info.st_uid == geteuid() && flock(fd.get(), LOCK_EX | LOCK_NB) == 0)
      fs::remove_all(entry.path(), ignored);
  }
}

} // namespace

PartialFile create_partial_file(const fs::path& path) {
  for (int tries = 0; tries < max_tries; ++tries) {
    fs::path partial = partial_name(path);
    Descriptor fd(open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (fd) return {std::move(partial), std::move(fd)};
    if (errno != EEXIST) break;
  }
  fail_to_write(path, "create the file");
}

PartialFile create_partial_folder(const fs::path& path) {
  remove_left_behind(path);
  for (int tries = 0; tries < max_tries; ++tries) {
    fs::path partial = partial_name(path);
    if (mkdir(partial.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      break;
    }
    Descriptor fd(open_folder(partial));
    if (!fd && errno != ENOENT) break;
    // On file systems without locks, folders of killed processes are not removed.
    if (fd && (flock(fd.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) && is_at(partial, fd))
      return {std::move(partial), std::move(fd)};
  }
  fail_to_write(path, "create the folder");
}

Descriptor open_kept_file(const fs::path& path) {
  Descriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644));
  if (!fd && errno == ELOOP)
    throw Error(ErrorKind::output, "this is a symlink, which is not followed when writing")
        .at(path.string())
        .advise("remove it, or write into another folder");
  if (!fd) fail_to_write(path, "open the file");
  struct stat info;
  if (fstat(fd.get(), &info) != 0) fail_to_write(path, "read the file's type");
  if (!S_ISREG(info.st_mode)) throw Error(ErrorKind::output, "not a regular file").at(path.string());
  return fd;
}

void make_folders(const fs::path& folder) {
  refuse_unexpanded_home(folder);
  std::error_code failed;
  if (!folder.empty()) fs::create_directories(folder, failed);
  if (!failed) return;
  errno = failed.value();
  fail_to_write(folder, "create the folder");
}

} // namespace fvlm
