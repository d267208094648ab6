#include "objective/labels.h"

#include "recipe/placeholders.h"

#include <algorithm>
#include <functional>

namespace fvlm::objective {

namespace {

// Calls visit(i, place) for each label, where `place` is its number in its span, from 0.
template <class Visit>
void each_label(const SampleText& text, const plan::LabelSelection& selection, Visit&& visit) {
  int64_t place = 0;
  for (size_t i = 1; i < text.ids.size(); ++i) {
    const bool in_span = !is_placeholder(text.ids[i]) && (selection.on == plan::LossOn::all || text.answer_mask[i]);
    if (in_span && (!selection.first || place < *selection.first)) visit(i, place);
    place = in_span ? place + 1 : 0;
  }
}

} // namespace

std::vector<bool> labels(const SampleText& text, const plan::LabelSelection& selection) {
  std::vector<bool> selected(text.ids.size());
  each_label(text, selection, [&](size_t i, int64_t) { selected[i] = true; });
  return selected;
}

std::vector<float> label_weights(const SampleText& text, const plan::LabelSelection& selection) {
  std::vector<float> weights(text.ids.size());
  each_label(text, selection, [&](size_t i, int64_t place) {
    const auto& by_place = selection.position_weights;
    weights[i] =
        by_place ? static_cast<float>((*by_place)[std::min(static_cast<size_t>(place), by_place->size() - 1)]) : 1.0f;
  });
  return weights;
}

int64_t label_count(const Sample& sample, const plan::LabelSelection& selection) {
  int64_t count = 0;
  for (const SampleText& text : sample.texts) each_label(text, selection, [&](size_t, int64_t) { ++count; });
  return count;
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
