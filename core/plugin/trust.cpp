#include "plugin/trust.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/scratch_folder.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <grp.h>
#include <memory>
#include <mutex>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace fvlm {
namespace fs = std::filesystem;
namespace {

// The convention of Debian, Ubuntu and Fedora: the group has the user's name and no other members.
bool is_private_group(gid_t group, uid_t user) {
  const passwd* person = getpwuid(user);
  if (!person || person->pw_gid != group) return false;
  std::string name = person->pw_name;
  const struct group* found = getgrgid(group);
  if (!found || name != found->gr_name) return false;
  for (char** member = found->gr_mem; *member; ++member)
    if (name != *member) return false;
  return true;
}

[[noreturn]] void refuse(const fs::path& path, std::string what, std::string advice) {
  throw Error(ErrorKind::plugin, std::move(what)).at(path.string()).advise(std::move(advice));
}

std::string user_name(uid_t user) {
  const passwd* person = getpwuid(user);
  return person ? person->pw_name : fmt::format("user {}", user);
}

enum class Place { path_component, own_folder };

// Resolves a path component by component, checking each.
class Walk {
 public:
  Walk(const TrustPolicy& policy, Place last) : policy_(policy), last_(last) {
    struct stat info;
    if (!policy.also_owner_of.empty() && stat(policy.also_owner_of.c_str(), &info) == 0) {
      also_ = info.st_uid;
      has_also_ = true;
    }
  }

  fs::path run(const fs::path& path) {
    for (const auto& step : fs::absolute(path).relative_path()) todo_.push_back(step);
    check_mode("/", todo_.empty());
    while (!todo_.empty()) {
      fs::path step = std::move(todo_.front());
      todo_.pop_front();
      if (step.empty() || step == ".") continue;
      if (step == "..") {
        here_ = here_.parent_path();
        continue;
      }
      enter(here_ / step);
    }
    return here_;
  }

 private:
  void enter(const fs::path& next) {
    struct stat info = status(next);
    if (!S_ISLNK(info.st_mode)) {
      here_ = next;
      check_mode(next, todo_.empty());
      return;
    }
    check_owner(next, info, "symlink");
    if (++links_ > 40) refuse(next, "more than 40 symlinks in the path", "use the plugin's real path");
    std::error_code error;
    fs::path target = fs::read_symlink(next, error);
    if (error) refuse(next, "the symlink cannot be read: " + error.message(), "use the plugin's real path");
    std::deque<fs::path> steps;
    for (const auto& step : target.relative_path()) steps.push_back(step);
    todo_.insert(todo_.begin(), steps.begin(), steps.end());
    if (target.is_absolute()) here_ = "/";
    struct stat at_end;
    if (stat(next.c_str(), &at_end) != 0)
      refuse(next, fmt::format("a dangling symlink ({}): {}", target.string(), std::strerror(errno)),
             "correct or remove the symlink");
  }

  static struct stat status(const fs::path& path) {
    struct stat info;
    if (lstat(path.c_str(), &info) == 0) return info;
    refuse(path,
           errno == ENOENT ? "no such file or folder" : fmt::format("cannot be accessed: {}", std::strerror(errno)),
           "check the path");
  }

  void check_mode(const fs::path& path, bool last) {
    struct stat info = status(path);
    const char* what = S_ISDIR(info.st_mode) ? "folder" : "file";
    check_owner(path, info, what);
    bool sticky = S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) && !(last && last_ == Place::own_folder);
    if (sticky) return;
    auto mode = static_cast<unsigned>(info.st_mode & 07777);
    if (info.st_mode & S_IWOTH)
      refuse(path,
             fmt::format("a world-writable {} (mode {:04o}): anybody could inject code into the engine", what, mode),
             fmt::format("chmod o-w {}", path.string()));
    if ((info.st_mode & S_IWGRP) && !policy_.private_group(info.st_gid, info.st_uid))
      refuse(path,
             fmt::format("a group-writable {} (mode {:04o}): members of its group could inject code into the engine",
                         what, mode),
             fmt::format("chmod g-w {}", path.string()));
  }

  void check_owner(const fs::path& path, const struct stat& info, const char* what) const {
    if (info.st_uid == 0 || info.st_uid == policy_.user || (has_also_ && info.st_uid == also_)) return;
    refuse(path,
           fmt::format("a {} owned by {}, not by {}", what, user_name(info.st_uid),
                       policy_.user == 0 ? "root" : user_name(policy_.user) + " or root"),
           fmt::format("copy it to a folder of your own, or: chown {} {}", user_name(policy_.user), path.string()));
  }

  const TrustPolicy& policy_;
  Place last_;
  uid_t also_ = 0;
  bool has_also_ = false;
  int links_ = 0;
  fs::path here_ = "/";
  std::deque<fs::path> todo_;
};

FileIdentity identity_of(const struct stat& info) {
  auto ns = [](const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
  return {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size), ns(info.st_mtim), ns(info.st_ctim)};
}

const char* type_name(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

[[noreturn]] void refuse_copy(const fs::path& path, const char* what) {
  refuse(path, fmt::format("its private copy cannot be {}: {}", what, std::strerror(errno)),
         "with a lock file a copy in memory is hashed, loaded; free some, or allow memfd_create");
}

int make_memory_file(const fs::path& path) {
  constexpr unsigned executable = 0x10; // MFD_EXEC, which kernels before 6.3 do not know
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const std::string name = path.filename();
  int file = memfd_create(name.c_str(), flags | executable);
  if (file < 0 && errno == EINVAL) file = memfd_create(name.c_str(), flags);
  if (file < 0) refuse_copy(path, "created");
  return file;
}

void append(int file, std::string_view bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) refuse_copy(path, "written");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

// Removed at the end of this process, but not of one forked from it.
struct KeptFolders {
  pid_t owner = getpid();
  std::mutex mutex;
  std::deque<std::unique_ptr<ScratchFolder>> all;
};

KeptFolders& kept_folders() {
  static auto* kept = [] {
    const auto remove = [] {
      if (kept_folders().owner == getpid()) kept_folders().all.clear();
    };
    std::atexit(remove);
    std::at_quick_exit(remove);
    return new KeptFolders;
  }();
  return *kept;
}

// A folder with a link to the memory file under the library's name, and links to the other files of the library's
// folder.
fs::path folder_around(int file, const fs::path& library) {
  auto folder = std::make_unique<ScratchFolder>();
  for (const auto& beside : fs::directory_iterator(library.parent_path()))
    if (beside.path().filename() != library.filename())
      fs::create_symlink(beside.path(), *folder / beside.path().filename());
  fs::create_symlink(fmt::format("/proc/{}/fd/{}", getpid(), file), *folder / library.filename());
  const std::lock_guard lock(kept_folders().mutex);
  return kept_folders().all.emplace_back(std::move(folder))->path();
}

} // namespace

TrustPolicy::TrustPolicy() : user(geteuid()), private_group(is_private_group) {}

fs::path check_trusted(const fs::path& path, const TrustPolicy& policy) {
  return Walk(policy, Place::path_component).run(path);
}

fs::path check_trusted_folder(const fs::path& folder, const TrustPolicy& policy) {
  return Walk(policy, Place::own_folder).run(folder);
}

// O_NONBLOCK, because opening a named pipe without a writer would block.
OpenedFile::OpenedFile(const fs::path& path)
    : path_(path), content_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0)
    refuse(path, errno == ENOENT ? "no such file" : fmt::format("cannot be opened: {}", std::strerror(errno)),
           "check the path and its permissions");
  struct stat info;
  bool known = fstat(descriptor_, &info) == 0;
  if (known && S_ISREG(info.st_mode)) {
    identity_ = identity_of(info);
    return;
  }
  close(descriptor_);
  refuse(path, known ? fmt::format("{}, not a file", type_name(info.st_mode)) : "cannot be accessed", "check the path");
}

OpenedFile::~OpenedFile() {
  close(descriptor_);
}

std::string OpenedFile::read(uint64_t offset, uint64_t bytes) const {
  if (offset >= identity_.size) return "";
  std::string content(std::min(bytes, identity_.size - offset), '\0');
  size_t filled = 0;
  while (filled < content.size()) {
    ssize_t n =
        pread(descriptor_, content.data() + filled, content.size() - filled, static_cast<off_t>(offset + filled));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse(path_, fmt::format("cannot be read: {}", std::strerror(errno)), "check the disk it lies on");
    if (n == 0) break;
    filled += static_cast<size_t>(n);
  }
  content.resize(filled);
  return content;
}

std::string OpenedFile::sha256() const {
  constexpr uint64_t step = 1 << 20;
  Sha256 hash;
  for (uint64_t offset = 0; offset < identity_.size; offset += step) hash.update(read(offset, step));
  return hash.hex();
}

void OpenedFile::make_private() {
  const int copy = make_memory_file(path_);
  constexpr uint64_t step = 1 << 20;
  for (uint64_t offset = 0; offset < identity_.size; offset += step) append(copy, read(offset, step), path_);
  constexpr int sealed = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
  if (fcntl(copy, F_ADD_SEALS, sealed) != 0) refuse_copy(path_, "sealed");
  verify_unchanged(); // so that the copied content belongs to the identity
  content_ = folder_around(copy, path_) / path_.filename();
  close(std::exchange(descriptor_, fcntl(copy, F_DUPFD_CLOEXEC, 0)));
}

void OpenedFile::verify_unchanged() const {
  if (content_ != path_) return;
  struct stat held, named;
  bool same = fstat(descriptor_, &held) == 0 && stat(path_.c_str(), &named) == 0 && identity_of(held) == identity_ &&
              identity_of(named) == identity_;
  if (!same) refuse(path_, "it changed while it was being checked", "try again when nothing writes to it");
}

} // namespace fvlm
