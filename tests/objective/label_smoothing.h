// An objective that the engine does not have: cross-entropy with label smoothing. The test adds it by a line for its
// settings and a line for its loss, and changes nothing else.
#pragma once
#include "objective/loss.h"
#include "objective/settings.h"

namespace fvlm::objective {

struct LabelSmoothing : Cloneable<LabelSmoothing, plan::ObjectiveTerm> {
  std::string_view name() const override { return "label_smoothing"; }
  std::vector<std::string> figures() const override { return {"cross_entropy"}; }
  plan::LabelSelection labels() const override { return {on, {}}; }

  plan::LossOn on = plan::LossOn::answer;
  double epsilon = 0.1; // of the probability goes to all tokens alike
};

Settings label_smoothing_settings();
std::unique_ptr<Loss> label_smoothing_loss(const plan::ObjectiveTerm& term);

} // namespace fvlm::objective
