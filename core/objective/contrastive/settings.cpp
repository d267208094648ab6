#include "objective/contrastive/settings.h"

#include "objective/settings.h"

namespace fvlm::objective {

using namespace recipe;

Settings contrastive_settings() {
  auto type = record<Contrastive>(
      "Contrastive", "contrastive",
      "Trains embeddings, as /v1/embeddings answers them: each query's positive is to be nearer to it than the other "
      "positives and negatives of its pack. docs/embeddings.md has the formula, and the way from data to vectors.");
  type.field("temperature", &Contrastive::temperature, number(above(0)),
             "What cosine similarities are divided by before the softmax.")
      .field("symmetric", &Contrastive::symmetric, boolean(),
             "The mean of this loss and of the one that lets each positive find its query among the pack's queries.")
      .field(
          "dimensions", &Contrastive::dimensions, list(integer(at_least(1)), {.allow_single = true}),
          "Matryoshka: the loss is the sum over the whole embeddings and over the first so many numbers of each, which "
          "/v1/embeddings then answers for the same `dimensions`.")
      .example("{ 64, 256 }")
      .usage("fvlm.contrastive { temperature = 0.02 }");
  term_weight(type);
  return recipe::alternative<plan::ObjectiveTerm>(type.done());
}

} // namespace fvlm::objective
