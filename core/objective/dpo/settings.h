// Direct preference optimization against the weights that the stage starts from.
#pragma once
#include "recipe/objective_term.h"

namespace fvlm::objective {

struct Dpo : Cloneable<Dpo, plan::ObjectiveTerm> {
  std::string_view name() const override { return "dpo"; }
  std::vector<std::string> figures() const override {
    return {"reward_accuracy", "chosen_reward", "rejected_reward", "reward_margin"};
  }
  plan::LabelSelection labels() const override { return {}; }
  bool needs_pairs() const override { return true; }
  Reference reference() const override { return cache_reference ? Reference::cached : Reference::live; }
  std::optional<double> reward_scale() const override { return beta; }

  double beta = 0.1;
  bool cache_reference = false;
};

} // namespace fvlm::objective
