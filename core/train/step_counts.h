// What the samples of a step hold: the numbers that its losses are means over.
#pragma once
#include "data/samples/sample.h"
#include "recipe/plan.h"

#include <memory>
#include <span>
#include <vector>

namespace fvlm::train {

struct StepCounts {
  std::vector<double> of_term; // labels, or pairs
  int64_t samples = 0, text_tokens = 0, frames = 0;
  double all_terms() const;
};
StepCounts counts_of(const plan::Stage& stage, std::span<const std::shared_ptr<const Sample>> samples);

} // namespace fvlm::train
