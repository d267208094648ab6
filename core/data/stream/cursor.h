// Cursor: where a stage's stream stands between two steps, in a few hundred bytes. A stream that begins there goes on
// with exactly the next sample.
#pragma once
#include "data/stream/order.h"
#include "data/stream/sample_counts.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

struct Cursor {
  int64_t steps = 0, samples = 0; // that were handed out
  int64_t read = 0;               // samples that were looked at; among them
  int64_t broken = 0, left_out = 0;
  std::array<int64_t, skip_reasons> skipped{}; // the same by reason
  int64_t cut = 0;                             // samples that were handed out with a truncated text
  Order::State order;                          // at the oldest sample that waits for a pack; or at the next to be read
  std::vector<bool> done;                      // of the samples from there on that were read: is it out of the way?
  uint64_t fingerprint = 0;                    // of the order and the batches that the numbers above go by

  std::string text() const; // one line of JSON
  // Throws Error(data) at `where`.
  static Cursor parse(std::string_view text, const std::string& where);
  bool operator==(const Cursor&) const = default;
};

} // namespace fvlm
