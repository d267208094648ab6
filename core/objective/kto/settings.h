// Preference optimization on single answers that are said to be good or not (KTO), against the weights that the stage
// starts from.
#pragma once
#include "recipe/objective_term.h"

namespace fvlm::objective {

struct Kto : Cloneable<Kto, plan::ObjectiveTerm> {
  std::string_view name() const override { return "kto"; }
  std::vector<std::string> figures() const override {
    return {"reward", "reward_margin", "reward_accuracy", "desirable_share", "reference_kl"};
  }
  plan::LabelSelection labels() const override { return {}; }
  bool needs_pairs() const override { return true; }
  bool needs_judgements() const override { return true; }
  Reference reference() const override { return cache_reference ? Reference::cached : Reference::live; }
  std::optional<plan::PreferenceRewards> rewards() const override { return plan::PreferenceRewards{beta}; }

  double beta = 0.1;
  double desirable_weight = 1, undesirable_weight = 1;
  bool cache_reference = false;
};

} // namespace fvlm::objective
