#include "train/step_counts.h"

#include "objective/labels.h"

#include <numeric>

namespace fvlm::train {

double StepCounts::all_terms() const {
  return std::accumulate(of_term.begin(), of_term.end(), 0.0);
}

bool learns(const plan::Stage& stage, const plan::ObjectiveTerm& term, size_t text) {
  return text == 0 || !stage.needs_pairs() || !term.is_sum_over_labels();
}

// Whether the part of a pack is a sample, or the first of its inputs.
static bool is_begun_by(const Sample& part) {
  return part.role == Sample::Role::whole || part.role == Sample::Role::query;
}

double count_of(const plan::Stage& stage, const plan::ObjectiveTerm& term, const Sample& sample, double progress) {
  if (term.needs_pairs()) return is_begun_by(sample) ? 1 : 0;
  if (term.averages_texts()) return static_cast<double>(sample.texts.size());
  if (const int64_t rows = term.min_visual_rows(); rows > 0)
    return sample.visual_rows() >= rows ? static_cast<double>(sample.texts.size()) : 0;
  double count = 0;
  for (size_t i = 0; i < sample.texts.size(); ++i) {
    if (!learns(stage, term, i)) continue;
    const auto weights = objective::label_weights(sample.texts[i], term.labels_at(progress));
    count = std::accumulate(weights.begin(), weights.end(), count);
  }
  return count;
}

StepCounts counts_of(const plan::Stage& stage, std::span<const std::shared_ptr<const Sample>> samples,
                     double progress) {
  StepCounts counts;
  const size_t terms = stage.objective.size(), decoders = samples.empty() ? 1 : samples.front()->decoders();
  counts.of_term.resize(decoders * terms);
  for (size_t i = 0; i < decoders; ++i)
    for (const plan::Term& term : stage.objective)
      counts.weights.push_back(term->weight.at(progress) / static_cast<double>(decoders));
  counts.progress = progress;
  for (const auto& sample : samples) {
    counts.samples += is_begun_by(*sample);
    counts.frames += sample->frames;
    for (size_t i = 0; i < decoders; ++i) {
      const Sample& own = *for_decoder(sample, i);
      for (const SampleText& text : own.texts) {
        counts.text_tokens += text.tokens();
        counts.left_out_rows += own.visual_rows() - own.visual_rows(text);
      }
      for (size_t index = 0; index < terms; ++index)
        counts.of_term[i * terms + index] += count_of(stage, *stage.objective[index], own, progress);
    }
  }
  return counts;
}

} // namespace fvlm::train
