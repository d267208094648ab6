// Preference optimization on pairs of answers, against the weights that the stage starts from or without a reference.
#pragma once
#include "recipe/objective_term.h"

namespace fvlm::objective {

struct Dpo : Cloneable<Dpo, plan::ObjectiveTerm> {
  enum class Loss { sigmoid, ipo, hinge, kto, simpo, orpo };

  std::string_view name() const override { return "dpo"; }
  std::string metric() const override;
  std::vector<std::string> figures() const override;
  plan::LabelSelection labels() const override { return {}; }
  bool needs_pairs() const override { return true; }
  Reference reference() const override {
    return !reads_reference() ? Reference::none : cache_reference ? Reference::cached : Reference::live;
  }
  std::optional<plan::PreferenceRewards> rewards() const override {
    return reads_reference() ? std::optional(plan::PreferenceRewards{beta, averages()}) : std::nullopt;
  }

  Loss kind() const { return loss.value_or(Loss::sigmoid); }
  bool reads_reference() const { return kind() != Loss::simpo && kind() != Loss::orpo; }
  // Whether the loss compares mean log-probabilities of a text's labels, not their sums.
  bool averages() const { return kind() == Loss::ipo || !reads_reference(); }

  std::optional<Loss> loss; // absent: sigmoid
  double beta = 0.1;
  std::optional<double> label_smoothing; // absent: 0
  std::optional<double> gamma;           // of simpo; absent: 0.5
  bool cache_reference = false;
};

} // namespace fvlm::objective
