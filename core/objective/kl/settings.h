// Kullback-Leibler divergence from a teacher's next-token distribution.
#pragma once
#include "recipe/objective_term.h"

namespace fvlm::objective {

struct Kl : Cloneable<Kl, plan::ObjectiveTerm> {
  std::string_view name() const override { return "kl"; }
  plan::LabelSelection labels() const override { return {on, first, position_weights}; }
  const std::string* teacher() const override { return folder.empty() ? nullptr : &folder; }
  bool reads_teacher_prompt() const override { return reads == Reads::teacher_prompt; }

  enum class Reads { sample, teacher_prompt };

  std::string folder; // a model directory or checkpoint; empty: the model itself
  std::optional<Reads> reads;
  plan::LossOn on = plan::LossOn::answer;
  std::optional<int64_t> first;
  std::optional<std::vector<double>> position_weights;
  double temperature = 1;
};

} // namespace fvlm::objective
