// Prefetcher: delivers measured samples in order, while worker threads measure the following ones.
#pragma once
#include "data/stream/composer.h"
#include "data/stream/sample_source.h"
#include "data/stream/thread_pool.h"

#include <deque>
#include <future>
#include <optional>

namespace fvlm {

class Prefetcher {
 public:
  // Begins at the cursor and keeps `depth` samples in flight.
  Prefetcher(const SampleSource& source, const Order& order, const Cursor& start, ThreadPool& workers, size_t depth);

  // Waits for the next sample; nullopt at the end of the order. Throws ReadError for a failing disk.
  std::optional<MeasuredSample> next();

 private:
  void schedule();
  const SampleSource& source_;
  const Order& order_;
  Order::State state_;
  std::vector<bool> done_; // the first positions that are skipped
  size_t skipped_ = 0;
  ThreadPool& workers_;
  size_t depth_;
  bool ended_ = false;
  std::deque<std::future<MeasuredSample>> pending_;
};

// Measures the sample, or returns why it is skipped. Throws ReadError.
MeasuredSample measure(const SampleSource& source, const DrawnSample& drawn);

} // namespace fvlm
