// ReadAhead: delivers measured samples in order, while worker threads measure the following ones.
#pragma once
#include "data/stream/composer.h"
#include "data/stream/sample_source.h"
#include "data/stream/workers.h"

#include <deque>
#include <future>
#include <optional>

namespace fvlm {

class ReadAhead {
 public:
  // Begins at the cursor and keeps `depth` samples in flight.
  ReadAhead(const SampleSource& source, const Order& order, const Cursor& start, Workers& workers, size_t depth);

  // Waits for the next sample; nullopt at the end of the order. Throws ReadError for a failing disk.
  std::optional<Measured> next();

 private:
  void schedule();
  const SampleSource& source_;
  const Order& order_;
  Order::State state_;
  std::vector<bool> done_; // the first positions that are skipped
  size_t skipped_ = 0;
  Workers& workers_;
  size_t depth_;
  bool ended_ = false;
  std::deque<std::future<Measured>> pending_;
};

// Measures the sample, or returns why it is skipped. Throws ReadError.
Measured measure(const SampleSource& source, const Drawn& drawn);

} // namespace fvlm
