// An append-only file of records that tolerates a failing disk.
//
// A record that cannot be written (ENOSPC, EIO, a short write) does not end the run: a partial write is truncated, the
// records wait in memory (up to `max_kept` bytes), a warning is logged once, and every later append() and flush()
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
  static constexpr uint64_t max_kept = uint64_t{64} << 20;

  // Opens or creates `path` and truncates it to `size` bytes. Throws Error(data) if it is shorter or cannot be opened.
  RecordFile(std::filesystem::path path, uint64_t size);

  void append(std::string record);
  // Flushes to disk as much as possible. Returns the number of durable bytes, in whole records; records that wait in
  // memory are not among them.
  uint64_t flush();

 private:
  bool write_out();
  void trouble(const char* action);
  void recovered();

  std::filesystem::path path_;
  Descriptor fd_;
  uint64_t durable_;             // durable bytes
  uint64_t end_;                 // written bytes
  std::deque<std::string> kept_; // the records after durable_
  size_t written_ = 0;           // number of kept_ that are written
  uint64_t kept_bytes_ = 0;      // of kept_
  uint64_t lost_ = 0;            // records since the failure began
  bool troubled_ = false, unsynced_ = false;
};

} // namespace fvlm::report
