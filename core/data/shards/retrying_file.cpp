#include "data/shards/retrying_file.h"

#include "base/log.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace fvlm {
namespace {

std::chrono::steady_clock::time_point now(const RetryPolicy& policy) {
  return policy.now ? policy.now() : std::chrono::steady_clock::now();
}

// What no pause will mend.
bool permanent(int error) {
  return error == EACCES || error == EPERM || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG ||
         error == EISDIR || is_out_of_descriptors(error);
}

} // namespace

bool is_out_of_descriptors(int error) {
  return error == EMFILE || error == ENFILE;
}

ReadError::ReadError(const std::filesystem::path& path, uint64_t offset, int error, const std::string& what,
                     const char* advice)
    : Error(ErrorKind::data, what), offset_(offset), error_(error) {
  at(fmt::format("{} at byte {}", path.string(), offset));
  advise(is_out_of_descriptors(error) ? "raise the limit of open files, which `ulimit -n` prints: ulimit -n 65536"
                                      : advice);
}

RetryingFile::RetryingFile(std::filesystem::path path, RetryPolicy policy)
    : path_(std::move(path)), policy_(std::move(policy)) {
  retry(0, "open the file", [&] { return open(handle_, size_, modified_); });
}

RetryingFile::Failure RetryingFile::open(Handle& out, uint64_t& size, int64_t& modified) const {
  // Never waits for a pipe's writer: what it is, is looked at next.
  auto opened = std::make_shared<const Descriptor>(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!*opened) return {errno, std::strerror(errno), permanent(errno)};
  struct stat info;
  if (fstat(opened->get(), &info) != 0) return {errno, std::strerror(errno)};
  if (!S_ISREG(info.st_mode)) throw Error(ErrorKind::data, "not a regular file").at(path_.string());
  size = static_cast<uint64_t>(info.st_size);
  modified = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  out = std::move(opened);
  return {};
}

RetryingFile::Failure RetryingFile::reopen() const {
  Handle fresh;
  uint64_t size = 0;
  int64_t modified = 0;
  if (Failure failure = open(fresh, size, modified); !failure.what.empty()) return failure;
  if (size != size_ || modified != modified_) return {0, "the file was changed or replaced while it was in use", true};
  std::lock_guard guard(lock_);
  handle_ = std::move(fresh);
  return {};
}

RetryingFile::Handle RetryingFile::handle() const {
  std::lock_guard guard(lock_);
  return handle_;
}

RetryingFile::Failure RetryingFile::read_once(uint64_t& offset, std::span<std::byte>& into) const {
  Handle file = handle();
  auto begin = now(policy_);
  while (!into.empty()) {
    ssize_t got = pread(file->get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return {errno, std::strerror(errno), permanent(errno)};
    if (got == 0) return {0, fmt::format("the file ends here, and it was {} bytes long", size_)};
    into = into.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now(policy_) - begin);
  if (took > policy_.slow && std::has_single_bit(++slow_reads_)) // at the first, second, fourth, ...
    log_warning("{}: a read took {} s: the disk is slow ({} such reads)", path_.string(), took.count() / 1000.0,
                slow_reads_.load());
  return {};
}

template <class Action>
void RetryingFile::retry(uint64_t offset, const char* doing, Action&& action) const {
  auto pause = policy_.first_pause;
  for (int tried = 1;; ++tried) {
    Failure failure = action();
    if (failure.what.empty()) {
      if (tried > 1) log_info("{}: could {} at try {}", path_.string(), doing, tried);
      return;
    }
    if (failure.permanent || tried >= policy_.tries)
      throw ReadError(path_, offset, failure.error,
                      fmt::format("cannot {}, tried {}: {}", doing,
                                  tried == 1 ? "once" : fmt::format("{} times", tried), failure.what));
    log_warning("{}: cannot {} at byte {}: {}; again in {} ms (try {} of {})", path_.string(), doing, offset,
                failure.what, pause.count(), tried + 1, policy_.tries);
    policy_.pause ? policy_.pause(pause) : std::this_thread::sleep_for(pause);
    pause *= policy_.growth;
  }
}

void RetryingFile::read(uint64_t offset, std::span<std::byte> into) const {
  if (into.empty()) return;
  if (offset > size_ || into.size() > size_ - offset)
    throw Error(ErrorKind::internal, "{} bytes at {} lie outside the file's {}", into.size(), offset, size_)
        .at(path_.string());
  bool failed = false;
  retry(offset, "read the file", [&]() -> Failure {
    if (failed) // a handle may be stale, and the file a vanished one
      if (Failure failure = reopen(); !failure.what.empty()) return failure;
    Failure failure = read_once(offset, into);
    failed = !failure.what.empty();
    return failure;
  });
}

void RetryingFile::advise_random_access() const {
  posix_fadvise(handle()->get(), 0, 0, POSIX_FADV_RANDOM);
}

} // namespace fvlm
