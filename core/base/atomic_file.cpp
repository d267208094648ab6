#include "base/atomic_file.h"

#include "base/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

namespace fvlm {
namespace {

constexpr size_t buffer_size = size_t{256} << 10;

// One a process; a crash leaves it behind under a name that no later file has.
std::filesystem::path partial(const std::filesystem::path& path) {
  std::filesystem::path out = path;
  out += fmt::format(".partial-{}", getpid());
  return out;
}

} // namespace

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), beside_(partial(path_)),
      fd_(open(beside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (!fd_) fail_on_file(path_, "create the file");
}

AtomicFile::~AtomicFile() {
  if (!committed_) unlink(beside_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (pending_.size() + bytes.size() > buffer_size) flush();
  if (bytes.size() >= buffer_size)
    write_through(bytes);
  else
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
}

void AtomicFile::flush() {
  write_through(pending_);
  pending_.clear();
}

void AtomicFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_on_file(path_, "write the file");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  flush();
  if (fsync(fd_.get()) != 0) fail_on_file(path_, "flush the file to disk");
  if (rename(beside_.c_str(), path_.c_str()) != 0) fail_on_file(path_, "move the finished file into place");
  committed_ = true;
  fsync_folder(path_.parent_path());
}

AtomicFolder::AtomicFolder(std::filesystem::path path) : path_(std::move(path)) {
  if (!path_.has_filename()) path_ = path_.parent_path(); // "out/"
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(path_, ignored)))
    throw Error(ErrorKind::data, "there is something here already")
        .at(path_.string())
        .advise("name a folder that does not exist yet, or remove this one first");
  beside_ = partial(path_);
  std::filesystem::remove_all(beside_, ignored); // of a dead process that had our number
  if (!std::filesystem::create_directory(beside_, ignored)) {
    errno = ignored.value();
    fail_on_file(path_, "create the folder");
  }
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!committed_) std::filesystem::remove_all(beside_, ignored);
}

void AtomicFolder::commit() {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(beside_))
    if (entry.is_directory() && !entry.is_symlink()) fsync_folder(entry.path());
  fsync_folder(beside_);
  if (rename(beside_.c_str(), path_.c_str()) != 0) fail_on_file(path_, "move the finished folder into place");
  committed_ = true;
  fsync_folder(path_.parent_path());
}

} // namespace fvlm
