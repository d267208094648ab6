#include "objective/kl/settings.h"

#include "objective/settings.h"

namespace fvlm::objective {

using namespace recipe;

Settings kl_settings() {
  auto type = record<Kl>("Kl", "kl", "Kullback-Leibler divergence from a frozen teacher's next-token distribution.");
  type.field("teacher", &Kl::folder, path(),
             "A model directory, a checkpoint or a run (its newest checkpoint) with the same vocabulary.")
      .required();
  label_fields(type);
  type.field("temperature", &Kl::temperature, number(above(0)), "Temperature of both distributions; above 1 is softer.")
      .usage("fvlm.kl { teacher = \"models/large\", weight = 0.5 }");
  term_weight(type);
  return recipe::alternative<plan::ObjectiveTerm>(type.done());
}

} // namespace fvlm::objective
