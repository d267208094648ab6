#include "objective/dpo/settings.h"

#include "objective/settings.h"

namespace fvlm::objective {

using namespace recipe;

Settings dpo_settings() {
  auto type = record<Dpo>(
      "Dpo", "dpo",
      "Direct preference optimisation on pairs of answers. The reference is the model as the stage finds it, frozen.");
  type.field("beta", &Dpo::beta, number(above(0)), "How strongly the policy is held to the reference; small is loose.")
      .field(
          "cache_reference", &Dpo::cache_reference, flag(),
          "Compute the reference's log-probabilities once and keep them on disk, in place of a second model in memory.")
      .usage("fvlm.dpo { beta = 0.1 }");
  term_weight(type);
  return recipe::alternative<plan::ObjectiveTerm>(type.done());
}

} // namespace fvlm::objective
