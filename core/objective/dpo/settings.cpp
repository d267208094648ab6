#include "objective/dpo/settings.h"

#include "objective/settings.h"

namespace fvlm::objective {

using namespace recipe;

Settings dpo_settings() {
  auto type = record<Dpo>("Dpo", "dpo",
                          "Direct preference optimization on pairs of answers. The reference is the frozen model that "
                          "the stage starts from.");
  type.field("beta", &Dpo::beta, number(above(0)), "Strength of the KL penalty towards the reference.")
      .field("cache_reference", &Dpo::cache_reference, boolean(),
             "Compute the reference log-probabilities once and cache them on disk, instead of keeping a second model "
             "in memory.")
      .usage("fvlm.dpo { beta = 0.1 }");
  term_weight(type);
  return recipe::alternative<plan::ObjectiveTerm>(type.done());
}

} // namespace fvlm::objective
