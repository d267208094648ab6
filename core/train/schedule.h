// Learning rates on the way through a stage.
#pragma once
#include "recipe/plan.h"

namespace fvlm::train {

// Where a step stands in its stage: shares of the stage's samples, before it and with it.
struct Stretch {
  double before = 0, after = 0;
};

// The rate of a step for a group with this base rate. Warm-up rises to the base rate with the last of its steps; what
// follows it begins there with the next one.
double rate(const plan::Schedule& schedule, double base, const Stretch& step);

} // namespace fvlm::train
