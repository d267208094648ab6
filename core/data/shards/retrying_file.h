// A file whose reads are retried with exponential backoff: a temporary failure of a disk or network costs a pause, a
// permanent one throws ReadError.
#pragma once
#include "base/descriptor.h"
#include "base/error.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

namespace fvlm {

// Whether a file could not be opened because the process or the machine has too many open.
bool is_out_of_descriptors(int error);

// A failure of the disk, not of a sample. Code that skips broken samples must let it propagate, so that the run ends.
class ReadError : public Error {
 public:
  ReadError(
      const std::filesystem::path& path, uint64_t offset, int error, const std::string& what,
      const char* advice = "this is the disk or the network and not a broken sample: repair it, then resume the run");
  uint64_t offset() const { return offset_; }
  int error_number() const { return error_; } // 0 when no system call failed but the file has changed

 private:
  uint64_t offset_;
  int error_;
};

struct RetryPolicy {
  int tries = 5;
  std::chrono::milliseconds first_pause{100};
  int growth = 4;                                             // factor from one pause to the next
  std::chrono::milliseconds slow{5000};                       // reads that take longer are logged
  std::function<void(std::chrono::milliseconds)> pause;       // replaces sleeping, for tests
  std::function<std::chrono::steady_clock::time_point()> now; // replaces the steady clock, for tests
};

class RetryingFile {
 public:
  // Throws Error(data) when the path is not a regular file, ReadError when it cannot be opened.
  RetryingFile(std::filesystem::path path, RetryPolicy policy);

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }        // when it was opened
  int64_t modified() const { return modified_; } // nanoseconds since 1970
  const RetryPolicy& policy() const { return policy_; }

  // Fills `into` from `offset` on; the range must lie within size(). [any thread]
  void read(uint64_t offset, std::span<std::byte> into) const;

  // Tells the kernel that access is random, which turns off its read-ahead.
  void advise_random_access() const;

 private:
  struct Failure {
    int error = 0; // an errno; 0 and no text: it went well
    std::string what;
    bool permanent = false; // retrying cannot help
  };
  using Handle = std::shared_ptr<const Descriptor>;
  Failure open(Handle& out, uint64_t& size, int64_t& modified) const;
  Failure reopen() const;
  Failure read_once(uint64_t& offset, std::span<std::byte>& into) const;
  template <class Action>
  void retry(uint64_t offset, const char* doing, Action&& action) const;
  Handle handle() const;

  std::filesystem::path path_;
  RetryPolicy policy_;
  uint64_t size_ = 0;
  int64_t modified_ = 0;
  mutable std::mutex lock_; // of handle_
  mutable Handle handle_;
  mutable std::atomic<uint64_t> slow_reads_{0};
};

} // namespace fvlm
