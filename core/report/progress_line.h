// How far training has got, for who watches: one line of the terminal, written over; elsewhere (a log file, CI) a line
// of its own at most every 30 seconds.
//
//   align  step 1,200 of 2,000  loss 0.8431  1,312 samples/s  data wait 2 %  3 min 20 s left
#pragma once
#include "base/status_line.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>

namespace fvlm::report {

// Where a stage is. What is not known is left out of the line.
struct Moment {
  std::string stage;
  int64_t step = 0;
  std::optional<int64_t> steps;         // none where budgets make the batches
  int64_t samples = 0, all_samples = 0; // of the stage
  double loss = std::numeric_limits<double>::quiet_NaN();
  double data_wait_share = std::numeric_limits<double>::quiet_NaN();
};

// Samples a second, of which the last 20 seconds count most. A stretch that took 100 seconds has 99 % of the say.
class SmoothedRate {
 public:
  void add(double samples, double seconds);
  std::optional<double> value() const; // none before the first add()

 private:
  double samples_ = 0, seconds_ = 0;
};

class ProgressLine {
 public:
  // `seconds`: a clock, of tests. Colours as NO_COLOR and the terminal have it.
  explicit ProgressLine(int descriptor = 2, std::function<double()> seconds = {});

  // After each step: it costs next to nothing where nothing is due. Another stage, or samples that go back (a resumed
  // or rolled back stage), begin the rate anew.
  void show(const Moment& moment);
  void clear() { line_.clear(); } // a stage is over, or somebody else writes to the terminal

 private:
  bool plain_due(double now);
  std::string text(const Moment& moment, size_t width) const;

  int descriptor_;
  StatusLine line_;
  bool colour_;
  std::function<double()> seconds_;
  SmoothedRate rate_;
  Moment last_;
  double last_seconds_ = 0;
  std::optional<double> plain_written_;
};

} // namespace fvlm::report
