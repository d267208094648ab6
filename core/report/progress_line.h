// The progress line of a training run: a single line that is overwritten on a terminal. Elsewhere (a log file, CI) it
// is a new line after the first step, then after 5 seconds, doubling up to every 30 seconds.
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

// The state of a stage. Values that are unknown are left out of the line.
struct TrainingProgress {
  std::string stage;
  int64_t step = 0;
  std::optional<int64_t> steps;         // unknown when batches are made by budget
  int64_t samples = 0, all_samples = 0; // of the stage
  int64_t samples_before = 0,
          run_samples = 0;        // of earlier stages, and of all stages that will run; 0: only this stage runs
  int64_t tokens = 0;             // of the stage: visual and text
  double seconds = 0, waited = 0; // of training so far, and those spent waiting for data
  double loss = std::numeric_limits<double>::quiet_NaN(), lr = loss; // lr: the largest of all groups
};

// A rate per second as an exponential moving average with a time constant of 20 seconds.
class SmoothedRate {
 public:
  void add(double amount, double seconds);
  std::optional<double> value() const; // none before the first add()

 private:
  double amount_ = 0, seconds_ = 0;
};

class ProgressLine {
 public:
  // `seconds` replaces the clock in tests. Colors follow NO_COLOR and the terminal.
  explicit ProgressLine(int descriptor = 2, std::function<double()> seconds = {});

  // Call it at the beginning of a stage and after each step; it is cheap when no line is due. The rates start over for
  // another stage, and when the number of samples decreases after a rollback.
  void show(const TrainingProgress& progress);
  // Shows what happens between two steps, on a terminal only.
  void note(const std::string& text);
  void clear() { line_.clear(); } // at the end of a stage, or before other output to the terminal

 private:
  bool plain_due(double now);
  std::string text(const TrainingProgress& progress, size_t width) const;

  int descriptor_;
  StatusLine line_;
  bool colour_;
  std::function<double()> seconds_;
  SmoothedRate samples_, tokens_, steps_, waited_; // a second of training
  TrainingProgress last_;
  std::optional<double> plain_written_; // by the clock
  double plain_pause_ = 0;
};

} // namespace fvlm::report
