// The distance of the connector's rows from the rows of the decoder's embedding, in means and standard deviations.
#pragma once
#include "recipe/objective_term.h"

namespace fvlm::objective {

struct Manifold : Cloneable<Manifold, plan::ObjectiveTerm> {
  std::string_view name() const override { return "manifold"; }
  plan::LabelSelection labels() const override { return {plan::LossOn::answer, 0}; }
  int64_t min_visual_rows() const override { return 2; } // fewer have no standard deviation
};

} // namespace fvlm::objective
