#include "objective/labels.h"

#include <algorithm>
#include <functional>

namespace fvlm::objective {

std::vector<bool> labels(const SampleText& text, const plan::LabelSelection& selection) {
  std::vector<bool> selected(text.ids.size());
  int64_t in_span = 0;
  for (size_t i = 1; i < selected.size(); ++i) {
    const bool wanted = text.ids[i] != visual_placeholder && (selection.on == plan::LossOn::all || text.answer_mask[i]);
    in_span = wanted ? in_span + 1 : 0;
    selected[i] = wanted && (!selection.first || in_span <= *selection.first);
  }
  return selected;
}

std::vector<bool> labels(const SampleText& text, std::span<const plan::Term> terms) {
  std::vector<bool> selected(text.ids.size());
  for (const plan::Term& term : terms) {
    const auto of_term = labels(text, term->labels());
    std::transform(selected.begin(), selected.end(), of_term.begin(), selected.begin(), std::logical_or<>());
  }
  return selected;
}

} // namespace fvlm::objective
