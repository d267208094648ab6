// Cursor: the position of a stage's data stream between two steps, as checkpoints store it. A stream that is restored
// from it continues with exactly the next sample.
#pragma once
#include "data/stream/order.h"
#include "data/stream/sample_counts.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

struct Cursor {
  int64_t steps = 0, samples = 0; // delivered
  int64_t read = 0;               // samples that were measured, among them
  int64_t broken = 0, left_out = 0;
  std::array<int64_t, skip_reasons> skipped{}; // skipped samples by reason
  int64_t undecodable = 0;                     // of the delivered: an image or video is broken, as was seen too late
  int64_t cut = 0;                             // delivered samples with a truncated text
  Order::State order;                          // at the oldest sample that waits for a pack, or at the next one to read
  std::vector<bool> done;   // for each sample read from there on, whether it was delivered or skipped
  int64_t offset = 0;       // tokens of the oldest document that earlier rows hold, where samples are documents
  uint64_t fingerprint = 0; // identifies the order and the batch settings

  void add_undecodable(int64_t count);

  std::string text() const; // one line of JSON
  // Throws Error(data) at `where`.
  static Cursor parse(std::string_view text, const std::string& where);
  bool operator==(const Cursor&) const = default;
};

} // namespace fvlm
