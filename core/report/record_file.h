// An append-only file of records that tolerates a failing disk.
//
// A record that cannot be written (ENOSPC, EIO, a short write) does not end the run: a partial write is truncated, the
// records wait in memory (up to `most_kept` bytes), a warning is logged once, and every later append() and flush()
// retries. Records beyond that limit are lost; their number is logged when the disk works again.
#pragma once
#include "base/descriptor.h"

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>

namespace fvlm::report {

class RecordFile {
 public:
  static constexpr uint64_t most_kept = uint64_t{64} << 20;

  // Opens `path`, made if it is missing, and cuts what lies behind its first `size` bytes. Throws Error(data) when it
  // has fewer, or cannot be opened.
  RecordFile(std::filesystem::path path, uint64_t size);

  void append(std::string record);
  // Makes durable what can be. Returns how many bytes, all of whole records, a power cut would leave: those that wait
  // in memory are not among them.
  uint64_t flush();

 private:
  bool write_out();
  void trouble(const char* action);
  void recovered();

  std::filesystem::path path_;
  Descriptor fd_;
  uint64_t durable_;             // bytes that a power cut would leave
  uint64_t end_;                 // bytes that are written
  std::deque<std::string> kept_; // the records behind durable_
  size_t written_ = 0;           // how many of kept_ are written
  uint64_t kept_bytes_ = 0;      // of kept_
  uint64_t lost_ = 0;            // records since the failure began
  bool troubled_ = false, unsynced_ = false;
};

} // namespace fvlm::report
