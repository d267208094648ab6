// ReadAhead: measured samples in the order of their positions, some of them looked at beforehand by the workers.
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
  // Begins at the cursor; `depth`: how many are under way at once.
  ReadAhead(const SampleSource& source, const Order& order, const Cursor& start, Workers& workers, size_t depth);

  // The next one; waits for it. Nothing at the order's end. Throws ReadError for a failing disk.
  std::optional<Measured> next();

 private:
  void ask();
  const SampleSource& source_;
  const Order& order_;
  Order::State state_;
  std::vector<bool> done_; // of the first positions: passed over
  size_t passed_ = 0;
  Workers& workers_;
  size_t depth_;
  bool ended_ = false;
  std::deque<std::future<Measured>> asked_;
};

// What the source says of the sample there, or why it is not used. Throws ReadError.
Measured measure(const SampleSource& source, const Drawn& drawn);

} // namespace fvlm
