// Kullback-Leibler divergence from a frozen teacher's next-token distribution.
#pragma once
#include "recipe/objective_term.h"

namespace fvlm::objective {

struct Kl : Cloneable<Kl, plan::ObjectiveTerm> {
  std::string_view name() const override { return "kl"; }
  plan::LabelSelection labels() const override { return {on, first, position_weights}; }
  const std::string* teacher() const override { return &folder; }

  std::string folder; // a model directory or checkpoint
  plan::LossOn on = plan::LossOn::answer;
  std::optional<int64_t> first;
  std::optional<std::vector<double>> position_weights;
  double temperature = 1;
};

} // namespace fvlm::objective
