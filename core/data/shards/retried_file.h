// A file whose reads are tried again: a disk or network that fails for a moment costs a pause, one that stays broken
// ends in a ReadError.
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

// The disk's failure, never a sample's: whoever sets broken samples aside lets this one through, and the run ends.
class ReadError : public Error {
 public:
  ReadError(
      const std::filesystem::path& path, uint64_t offset, int error, const std::string& what,
      const char* advice = "this is the disk or the network and no broken sample: see to it, then resume the run");
  uint64_t offset() const { return offset_; }
  int error_number() const { return error_; } // 0: no call failed, but the file is not what it was

 private:
  uint64_t offset_;
  int error_;
};

struct RetryPolicy {
  int tries = 5;
  std::chrono::milliseconds first_pause{100};
  int growth = 4;                                             // each pause is so many times the one before
  std::chrono::milliseconds slow{5000};                       // a read that takes longer is logged
  std::function<void(std::chrono::milliseconds)> pause;       // none: this thread sleeps
  std::function<std::chrono::steady_clock::time_point()> now; // none: the steady clock
};

class RetriedFile {
 public:
  // Throws Error(data) when this is no regular file or may not be read, ReadError when it cannot be.
  RetriedFile(std::filesystem::path path, RetryPolicy policy);

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }        // when it was opened
  int64_t modified() const { return modified_; } // nanoseconds since 1970
  const RetryPolicy& policy() const { return policy_; }

  // Fills `into` from `offset` on, both within size(). [any thread]
  void read(uint64_t offset, std::span<std::byte> into) const;

  // Reads will jump about: the kernel need not read ahead.
  void expect_jumps() const;

 private:
  struct Failure {
    int error = 0; // an errno; 0 and no text: it went well
    std::string what;
    bool lasting = false; // trying again is of no use
  };
  using Handle = std::shared_ptr<const Descriptor>;
  Failure open(Handle& out, uint64_t& size, int64_t& modified) const;
  Failure reopen() const;
  Failure read_once(uint64_t& offset, std::span<std::byte>& into) const;
  template <class Action>
  void try_again(uint64_t offset, const char* doing, Action&& action) const;
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
