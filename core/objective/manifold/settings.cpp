#include "objective/manifold/settings.h"

#include "objective/settings.h"

namespace fvlm::objective {

using namespace recipe;

Settings manifold_settings() {
  auto type =
      record<Manifold>("Manifold", "manifold",
                       "Keeps the connector's rows among those of the decoder's embedding: over the visual rows of a "
                       "text, the mean squared difference of the columns' means from the embedding's, and of their "
                       "standard deviations. Mean over the texts with two visual rows or more.");
  type.usage("fvlm.manifold { weight = 1e-3 }");
  term_weight(type);
  return recipe::alternative<plan::ObjectiveTerm>(type.done());
}

} // namespace fvlm::objective
