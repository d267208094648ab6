// train/learner.h without numbers: one pack through a stage's objective, forwards and back, and the optimizer's step.
#pragma once
#include "budget/shadow/model.h"

#include <map>

namespace fvlm::budget::shadow {

struct Models {
  const Model& policy;
  const Model* reference = nullptr;        // of DPO
  std::map<size_t, const Model*> teachers; // of KL terms, by term
};

// What is held when the forward pass is done.
Amounts learn(Operations& ops, const Models& models, const plan::Stage& stage, const PackShape& pack,
              int64_t frame_elements);

} // namespace fvlm::budget::shadow
