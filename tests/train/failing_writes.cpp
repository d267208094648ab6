#include "failing_writes.h"

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <dlfcn.h>
#include <mutex>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace fvlm::train {
namespace {

struct State {
  std::mutex lock;
  bool armed = false;
  DiskFault fault = DiskFault::full;
  std::string part;
  int64_t first = 0, count = 0, calls = 0, failed = 0;
};
State state;
std::atomic<int64_t> free_bytes{-1}; // negative: as the disk says

bool fails(const char* path) {
  const std::lock_guard hold(state.lock);
  if (!state.armed || !path || std::string(path).find(state.part) == std::string::npos) return false;
  const int64_t number = ++state.calls;
  if (number < state.first || number >= state.first + state.count) return false;
  ++state.failed;
  return true;
}

std::string path_of(int fd) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  return size < 0 ? "" : std::string(path, static_cast<size_t>(size));
}

int code() {
  return state.fault == DiskFault::full ? ENOSPC : state.fault == DiskFault::limited ? EFBIG : EIO;
}

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

} // namespace

FailingWrites::FailingWrites(DiskFault fault, const std::string& path_part, int64_t first, int64_t count) {
  const std::lock_guard hold(state.lock);
  state.armed = true;
  state.fault = fault;
  state.part = path_part;
  state.first = first;
  state.count = count;
  state.calls = state.failed = 0;
}

FailingWrites::~FailingWrites() {
  const std::lock_guard hold(state.lock);
  state.armed = false;
}

int64_t FailingWrites::failed() {
  const std::lock_guard hold(state.lock);
  return state.failed;
}

FreeSpace::FreeSpace(uint64_t bytes) {
  free_bytes = static_cast<int64_t>(bytes);
}

FreeSpace::~FreeSpace() {
  free_bytes = -1;
}

} // namespace fvlm::train

using namespace fvlm::train;

extern "C" ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto next = real<ssize_t (*)(int, const void*, size_t)>("write");
  if (!state.armed || !fails(path_of(fd).c_str())) return next(fd, bytes, size);
  if (state.fault == DiskFault::short_write) return next(fd, bytes, (size + 1) / 2);
  return errno = code(), -1;
}

extern "C" ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  static const auto next = real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  if (!state.armed || !fails(path_of(fd).c_str())) return next(fd, bytes, size, offset);
  if (state.fault == DiskFault::short_write) return next(fd, bytes, (size + 1) / 2, offset);
  return errno = code(), -1;
}

extern "C" int fsync(int fd) {
  static const auto next = real<int (*)(int)>("fsync");
  if (!state.armed || state.fault == DiskFault::short_write || !fails(path_of(fd).c_str())) return next(fd);
  return errno = code(), -1;
}

extern "C" int rename(const char* from, const char* to) noexcept {
  static const auto next = real<int (*)(const char*, const char*)>("rename");
  if (!state.armed || state.fault == DiskFault::short_write || !fails(to)) return next(from, to);
  return errno = code(), -1;
}

extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  static const auto next = real<int (*)(const char*, mode_t)>("mkdir");
  if (!state.armed || state.fault == DiskFault::short_write || !fails(path)) return next(path, mode);
  return errno = code(), -1;
}

// Of either name: on this machine they are one.
static int filled(int result, struct statvfs* out) {
  if (free_bytes >= 0 && result == 0) {
    out->f_frsize = 1;
    out->f_bavail = out->f_bfree = static_cast<fsblkcnt_t>(free_bytes.load());
  }
  return result;
}

extern "C" int statvfs(const char* path, struct statvfs* out) noexcept {
  static const auto next = real<int (*)(const char*, struct statvfs*)>("statvfs");
  return filled(next(path, out), out);
}

extern "C" int statvfs64(const char* path, struct statvfs64* out) noexcept {
  static const auto next = real<int (*)(const char*, struct statvfs64*)>("statvfs64");
  static_assert(sizeof(struct statvfs64) == sizeof(struct statvfs));
  return filled(next(path, out), reinterpret_cast<struct statvfs*>(out));
}
