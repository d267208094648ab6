#include "train/step_counts.h"

#include "objective/labels.h"

#include <numeric>

namespace fvlm::train {

double StepCounts::all_terms() const {
  return std::accumulate(of_term.begin(), of_term.end(), 0.0);
}

StepCounts counts_of(const plan::Stage& stage, std::span<const std::shared_ptr<const Sample>> samples,
                     double progress) {
  StepCounts counts;
  counts.of_term.resize(stage.objective.size());
  for (const plan::Term& term : stage.objective) counts.weights.push_back(term->weight.at(progress));
  counts.samples = static_cast<int64_t>(samples.size());
  for (const auto& sample : samples) {
    counts.frames += sample->frames;
    for (const SampleText& text : sample->texts) counts.text_tokens += text.tokens();
    for (size_t index = 0; index < stage.objective.size(); ++index) {
      const plan::ObjectiveTerm& term = *stage.objective[index];
      if (term.needs_pairs()) {
        ++counts.of_term[index];
        continue;
      }
      for (const SampleText& text : sample->texts) {
        const auto weights = objective::label_weights(text, term.labels());
        counts.of_term[index] += std::accumulate(weights.begin(), weights.end(), 0.0);
      }
    }
  }
  return counts;
}

} // namespace fvlm::train
