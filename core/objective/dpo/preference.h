// The losses of fvlm.dpo as functions of two texts' log-probabilities.
#pragma once
#include "objective/dpo/settings.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace fvlm::objective {

struct Preference {
  at::Tensor losses;               // float64 [pairs]
  at::Tensor gradient;             // float64 [pairs, 2]: of each loss by the log-probabilities of its pair
  at::Tensor rewards;              // float64 [pairs, 2]
  std::vector<at::Tensor> figures; // float64 [pairs] each: those of Dpo::figures() behind the rewards
};

// `policy`, `reference`: float64 [pairs, 2], the log-probabilities of the chosen and the rejected text, or their means
// over labels where term.averages(). Without a reference in the loss it is undefined. `used`: float64 [pairs], 1, and 0
// for pairs that others must not read.
Preference preference(const Dpo& term, const at::Tensor& policy, const at::Tensor& reference, const at::Tensor& used);

} // namespace fvlm::objective
