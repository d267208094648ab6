// Reads and decodes samples without training on them and lists those that cannot be used, with the reason.
#pragma once
#include "data/stream/sample_counts.h"
#include "data/stream/sample_source.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fvlm {

struct CheckedSamples {
  SampleCounts counts;
  std::vector<SkippedSample> skipped; // ordered by position

  int64_t broken() const; // not counting those that the recipe's limits or their flags exclude
  // "a.tar, sample 'x': no text", a line each, of the first `most` that are broken.
  std::string broken_text(size_t most) const;
};

// Of the order's first `most` samples, 0: all, with so many threads, 0: one for each core. Throws ReadError for a
// failing disk. `progress`: so many are done; one call at a time.
CheckedSamples check_samples(const SampleSource& source, const Order& order, int64_t most, int threads,
                             const std::function<void(int64_t done)>& progress = {});

} // namespace fvlm
