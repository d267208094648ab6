// Loss trials: cases, the calls that run them, and the float64 formula.
#pragma once
#include "check/context.h"

#include <fvlm/loss.h>

namespace fvlm::check {

enum class Targets {
  all,
  some,
  none,
  last
}; // which tokens have a target; last: all do, and it is the last word of the vocabulary

struct LossCase {
  at::ScalarType dtype = at::kFloat;
  at::ScalarType gradient_dtype = at::kFloat;
  int64_t tokens = 24, width = 64, vocab = 96;
  Targets targets = Targets::all;
  bool d_hidden = true, d_weight = true;
  bool accumulate = false;
  bool fused = false;            // one call in place of forward and backward
  double magnitude = 1;          // of hidden
  float softcap = 0;             // 0: none
  bool ignored_nan = false;      // rows of hidden and d_losses without a target are NaN
  bool paired_words = false;     // words are equal in pairs, so that the largest logit occurs twice
  int64_t large_logits_from = 0; // words from this index on have a large logit for some token; 0: none
  bool signed_weights = false;   // d_losses of both signs, zeros among them; else all the same
  uint64_t seed = 1;
};

Trial loss_trial(const LossCase& loss);
std::vector<Trial> loss_cases(const std::vector<LossCase>& cases);
at::ScalarType loss_dtype(Context& context);

} // namespace fvlm::check
