// Judges the numbers of each step, after the device has applied it or left it out.
#pragma once
#include "recipe/plan.h"
#include "train/state.h"

#include <map>
#include <string>

namespace fvlm::train {

// What sends a run back to its last checkpoint; where it cannot go back, it ends or goes on.
struct Trouble {
  std::string what;
  bool ends_run;
};

class Guard {
 public:
  enum class Verdict {
    fine,
    spike,   // a loss far above those before it; the step is good all the same
    skip,    // not finite: the step must not be applied
    too_many // the same, once too often
  };

  Guard(plan::Guard limits, GuardState& state) : limits_(std::move(limits)), state_(state) {}

  Verdict check(double loss, double gradient_norm);
  // The running mean that the last finite loss was compared with.
  double mean_before() const { return mean_before_; }
  // After going back to a checkpoint.
  void reset();

 private:
  plan::Guard limits_;
  GuardState& state_;
  double mean_before_ = 0;
};

// fp16's loss scale: halved where gradients overflow, doubled after so many steps without.
class Scaler {
 public:
  Scaler(bool on, ScalerState& state) : on_(on), state_(state) {}
  double scale() const { return on_ ? state_.scale : 1; }
  // What a line of metrics says of it: nothing where there is none.
  std::map<std::string, double> figures() const;
  // Whether an overflow of the gradients was the scale's doing: it is smaller then, and the next step may do.
  bool reduce_on_overflow(double loss, double gradient_norm);
  void step_done();

 private:
  bool on_;
  ScalerState& state_;
};

} // namespace fvlm::train
