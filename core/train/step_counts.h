// What the losses of a step are made of: the numbers that they are means over, and the weights of the terms.
#pragma once
#include "data/samples/sample.h"
#include "recipe/plan.h"

#include <memory>
#include <span>
#include <vector>

namespace fvlm::train {

// The terms of the first decoder, then those of each further one: the loss is the mean over the decoders.
struct StepCounts {
  std::vector<double> of_term; // labels by their weights, pairs, or texts
  std::vector<double> weights; // of each term in the sum
  double progress = 0;         // of the stage, before the step
  int64_t samples = 0, text_tokens = 0, frames = 0;
  int64_t left_out_rows = 0; // visual rows of the frames that texts do not have, over all texts
  double all_terms() const;
};
// Whether one of the stage's terms learns from the text of this number of a sample. Of a pair, a term that imitates its
// labels learns the chosen text alone.
bool learns(const plan::Stage& stage, const plan::ObjectiveTerm& term, size_t text);

// What the loss of one of the stage's terms is a mean over, in one sample.
double count_of(const plan::Stage& stage, const plan::ObjectiveTerm& term, const Sample& sample, double progress);

StepCounts counts_of(const plan::Stage& stage, std::span<const std::shared_ptr<const Sample>> samples,
                     double progress = 0);

} // namespace fvlm::train
