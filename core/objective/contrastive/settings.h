// InfoNCE between the embeddings of queries and of what they are to find, among the texts of a pack.
#pragma once
#include "recipe/objective_term.h"

namespace fvlm::objective {

struct Contrastive : Cloneable<Contrastive, plan::ObjectiveTerm> {
  std::string_view name() const override { return "contrastive"; }
  std::vector<std::string> figures() const override {
    return {"retrieval_accuracy", "positive_similarity", "negative_similarity", "negatives"};
  }
  plan::LabelSelection labels() const override { return {}; }
  bool needs_pairs() const override { return true; }
  bool embeds() const override { return true; }

  double temperature = 0.02;
  bool symmetric = false;
  std::vector<int64_t> dimensions; // that learn besides all of them: the first of each embedding
};

} // namespace fvlm::objective
