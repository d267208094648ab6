// Simulates a failing disk in this process by replacing the C library's pwrite() and fdatasync(). Include it in one
// file of a test program.
#pragma once
#include <cerrno>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

namespace fvlm::test {

struct FailingDisk {
  int write_error = 0; // errno of every write; 0: none
  int sync_error = 0;
  long room = -1; // bytes that can still be written before write_error; -1: none at all, or any number without error
  int writes_refused = 0;
};

inline FailingDisk disk;

} // namespace fvlm::test

extern "C" ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  auto& disk = fvlm::test::disk;
  if (disk.write_error != 0) {
    if (disk.room <= 0) {
      ++disk.writes_refused;
      errno = disk.write_error;
      return -1;
    }
    if (size > static_cast<size_t>(disk.room)) size = static_cast<size_t>(disk.room);
    disk.room -= static_cast<long>(size);
  }
  return syscall(SYS_pwrite64, fd, bytes, size, offset);
}

extern "C" int fdatasync(int fd) {
  if (fvlm::test::disk.sync_error != 0) {
    errno = fvlm::test::disk.sync_error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}
