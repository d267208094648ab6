// Simulates a failing disk: while armed, calls that change files below paths with a given part fail. It replaces the C
// library's write(), pwrite(), fsync(), rename(), mkdir() and statvfs() in the test.
#pragma once
#include <cstdint>
#include <ostream>
#include <string>

namespace fvlm::train {

enum class DiskFault { full, failing, limited, short_write }; // ENOSPC, EIO, EFBIG, half of what was asked for
inline void PrintTo(DiskFault fault, std::ostream* out) {
  constexpr const char* names[] = {"full", "failing", "limited", "short_write"};
  *out << names[static_cast<size_t>(fault)];
}

struct FailingWrites {
  // Fails so many calls, starting with call number `first`.
  FailingWrites(DiskFault fault, const std::string& path_part, int64_t first, int64_t count = 1);
  ~FailingWrites();
  static int64_t failed(); // of those armed last
};

// While it lives, every disk reports so many free bytes.
struct FreeSpace {
  explicit FreeSpace(uint64_t bytes);
  ~FreeSpace();
};

} // namespace fvlm::train
