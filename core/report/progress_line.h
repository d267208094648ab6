// How far training has got, for whoever watches: one line of the terminal, written over; elsewhere (a log file, CI) a
// line of its own after the first step, 5 seconds later, after twice as many, and so on up to every 30 seconds.
//
//   align 120/3,250 (overall 4 %)  loss 0.134  lr 1.9e-3  dt 27 ms  1,146 samples/s  29 k tokens/s  eta 2 min 41 s
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
  std::optional<int64_t> steps;                // none where budgets make the batches
  int64_t samples = 0, all_samples = 0;        // of the stage
  int64_t samples_before = 0, run_samples = 0; // of the stages before it, of all that are to run; 0: only this one
  int64_t tokens = 0;                          // of the stage: visual and text
  double seconds = 0, waited = 0; // that training took so far, and of those the ones that it waited for data
  double loss = std::numeric_limits<double>::quiet_NaN(), lr = loss; // lr: the greatest of any group
};

// So many a second, of which the last 20 seconds count most. A stretch that took 100 seconds has 99 % of the say.
class SmoothedRate {
 public:
  void add(double amount, double seconds);
  std::optional<double> value() const; // none before the first add()

 private:
  double amount_ = 0, seconds_ = 0;
};

class ProgressLine {
 public:
  // `seconds`: a clock, of tests. Colours as NO_COLOR and the terminal have it.
  explicit ProgressLine(int descriptor = 2, std::function<double()> seconds = {});

  // As a stage begins, from where its rates are counted, and after each step: it costs next to nothing where nothing is
  // due. Another stage, or samples that go back (a resumed or rolled back stage), begin the rates anew.
  void show(const Moment& moment);
  // On a terminal: what goes on between two steps.
  void note(const std::string& text);
  void clear() { line_.clear(); } // a stage is over, or somebody else writes to the terminal

 private:
  bool plain_due(double now);
  std::string text(const Moment& moment, size_t width) const;

  int descriptor_;
  StatusLine line_;
  bool colour_;
  std::function<double()> seconds_;
  SmoothedRate samples_, tokens_, steps_, waited_; // a second of training
  Moment last_;
  std::optional<double> plain_written_; // by the clock
  double plain_pause_ = 0;
};

} // namespace fvlm::report
