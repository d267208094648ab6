#include "objective/kto/settings.h"

#include "objective/settings.h"

namespace fvlm::objective {

using namespace recipe;

Settings kto_settings() {
  auto type = record<Kto>("Kto", "kto",
                          "Preference optimization on single answers that are said to be good or not. The reference is "
                          "the frozen model that the stage starts from. docs/preference-losses.md has the formulas.");
  type.field("beta", &Kto::beta, number(above(0)), "Strength of the KL penalty towards the reference.")
      .field("desirable_weight", &Kto::desirable_weight, number(at_least(0)), "Factor on the losses of good answers.")
      .field("undesirable_weight", &Kto::undesirable_weight, number(at_least(0)),
             "Factor on the losses of the others. Its ratio to the other makes up for data with many more of one kind.")
      .field("cache_reference", &Kto::cache_reference, boolean(),
             "Compute the reference log-probabilities once and cache them on disk, instead of keeping a second model "
             "in memory.")
      .usage("fvlm.kto { beta = 0.1 }");
  term_weight(type);
  return recipe::alternative<plan::ObjectiveTerm>(type.done());
}

} // namespace fvlm::objective
