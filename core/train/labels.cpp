#include "train/labels.h"

#include <algorithm>
#include <type_traits>

namespace fvlm::train {

std::vector<bool> labels(const SampleText& text, plan::LossOn on, std::optional<int64_t> first) {
  std::vector<bool> learnt(text.ids.size());
  int64_t of_span = 0;
  for (size_t i = 1; i < learnt.size(); ++i) {
    const bool wanted = on == plan::LossOn::all || text.answer[i];
    of_span = wanted ? of_span + 1 : 0;
    learnt[i] = wanted && (!first || of_span <= *first);
  }
  return learnt;
}

std::vector<bool> labels(const SampleText& text, const plan::Term& term) {
  return std::visit(
      [&](const auto& any) {
        if constexpr (std::is_same_v<std::decay_t<decltype(any)>, plan::Dpo>)
          return labels(text, plan::LossOn::answer);
        else
          return labels(text, any.on, any.first);
      },
      term);
}

std::vector<bool> labels(const SampleText& text, const plan::Stage& stage) {
  std::vector<bool> learnt(text.ids.size());
  for (const plan::Term& term : stage.objective) {
    const auto of_term = labels(text, term);
    std::transform(learnt.begin(), learnt.end(), of_term.begin(), learnt.begin(), std::logical_or<>());
  }
  return learnt;
}

} // namespace fvlm::train
