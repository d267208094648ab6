// A disk that fails: while it is armed, calls that change files below paths with a given part go wrong. The test's own
// write(), pwrite(), fsync(), rename(), mkdir() and statvfs() stand before the C library's.
#pragma once
#include <cstdint>
#include <ostream>
#include <string>

namespace fvlm::train {

enum class DiskFault { full, failing, short_write }; // ENOSPC, EIO, half of what was asked for
inline void PrintTo(DiskFault fault, std::ostream* out) {
  *out << (fault == DiskFault::full ? "full" : fault == DiskFault::failing ? "failing" : "short_write");
}

struct FailingWrites {
  // The calls from number `first` on, so many of them.
  FailingWrites(DiskFault fault, const std::string& path_part, int64_t first, int64_t count = 1);
  ~FailingWrites();
  static int64_t failed(); // of those armed last
};

// While it lives, every disk says that so many bytes are free.
struct FreeSpace {
  explicit FreeSpace(uint64_t bytes);
  ~FreeSpace();
};

} // namespace fvlm::train
