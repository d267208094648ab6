// StepObserver: what is made of a step's numbers once the device has them. Counts go into the run's state, losses into
// the metrics, and what is not finite or leaps is dealt with.
#pragma once
#include "train/active_lines.h"
#include "train/async_readback.h"
#include "train/guard.h"
#include "train/interval.h"
#include "train/optimization.h"
#include "train/run_context.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::train {

// A step that the device is still computing.
struct PendingStep {
  Cursor after;      // of the data, behind it
  StepCounts counts; // of the samples that were used
  double flops = 0;
  std::vector<Optimization::Rates> rates;
  int64_t used_rows = 0, all_rows = 0;
  PackingStatistics packing;
  bool measured_attention = false;
  AsyncReadback numbers; // sums of losses, norm of the gradients, entropy of attention
};

class StepObserver {
 public:
  StepObserver(RunContext& context, const plan::Stage& stage, RunState& state);

  double loss_scale() const { return scaler_.scale(); }
  // Takes the step into the state. Why the weights are to go back to the last checkpoint, if they are.
  std::optional<Trouble> observe(const PendingStep& step, const Optimization& optimization, PartTimes& times);
  void begin_anew() { guard_.reset(); } // behind a rollback

  Interval& interval() { return interval_; }
  const Interval& interval() const { return interval_; }
  void write_interval(PartTimes& times);
  // Of the last step: NaN before the first.
  double loss() const { return loss_; }
  double max_rate() const { return max_rate_; }

 private:
  RunContext& context_;
  const plan::Stage& stage_;
  RunState& state_;
  Interval interval_;
  Guard guard_;
  Scaler scaler_;
  double loss_ = std::numeric_limits<double>::quiet_NaN(), max_rate_ = loss_;
};

} // namespace fvlm::train
