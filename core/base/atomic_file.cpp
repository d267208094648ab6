#include "base/atomic_file.h"

#include "base/error.h"
#include "base/interrupt.h"

#include <cerrno>
#include <cstdio>
#include <unistd.h>

namespace fvlm {
namespace {

constexpr size_t buffer_size = size_t{256} << 10;

// A file is replaced by renaming another over it, which would take a device such as /dev/null away from everybody.
const std::filesystem::path& require_replaceable(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_other(status))
    throw Error(ErrorKind::output, "this is a device, pipe or socket, not a file")
        .at(path.string())
        .advise("name a file: it is written under another name and then moved into place");
  return path;
}

} // namespace

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(create_partial_file(require_replaceable(path_))) {}

AtomicFile::~AtomicFile() {
  if (!committed_) unlink(temporary_.path.c_str());
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
  throw_if_interrupted();
  while (!bytes.empty()) {
    ssize_t written = ::write(temporary_.fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_to_write(path_, "write the file");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  flush();
  if (fsync(temporary_.fd.get()) != 0) fail_to_write(path_, "flush the file to disk");
  if (rename(temporary_.path.c_str(), path_.c_str()) != 0) fail_to_write(path_, "move the finished file into place");
  committed_ = true;
  fsync_folder(path_.parent_path());
}

AtomicFolder::AtomicFolder(std::filesystem::path path) : path_(std::move(path)) {
  if (!path_.has_filename()) path_ = path_.parent_path(); // "out/"
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(path_, ignored)))
    throw Error(ErrorKind::output, "a file or folder of this name already exists")
        .at(path_.string())
        .advise("pass a folder that does not exist yet, or remove this one first");
  make_folders(path_.parent_path());
  temporary_.emplace(create_partial_folder(path_));
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (temporary_ && !committed_) std::filesystem::remove_all(temporary_path(), ignored);
}

void AtomicFolder::commit() {
  throw_if_interrupted();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(temporary_path()))
    if (entry.is_directory() && !entry.is_symlink()) fsync_folder(entry.path());
  fsync_folder(temporary_path());
  if (rename(temporary_path().c_str(), path_.c_str()) != 0) fail_to_write(path_, "move the finished folder into place");
  committed_ = true;
  fsync_folder(path_.parent_path());
}

} // namespace fvlm
