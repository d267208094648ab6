// What a pack's hidden states are held against: the formulas of training, evaluation and trace. Each leaves its
// gradient by the hidden states and the head on the tape.
#pragma once
#include "model/vlm.h"

namespace fvlm::model {

// Next-token cross-entropy: float32 [labels], padding 0. The gradient of each loss is known beforehand: `weights`
// (Labels::weights where there is one pack a step).
at::Tensor next_token(Tape& tape, Operations& ops, const Vlm& vlm, const Value& hidden, const Pack& pack,
                      const at::Tensor& weights);
// The same where it is not.
Value label_losses(Tape& tape, Operations& ops, const Vlm& vlm, const Value& hidden, const Pack& pack);

// Of each text's labels, or those of them where `mask` (float32 [labels]) is 1.
struct LogProbabilities {
  Value losses;    // a label
  at::Tensor mask; // undefined: every label counts
  at::Tensor sum;  // float64 [sequences]
};
LogProbabilities log_probabilities(const Value& losses, const Pack& pack, const at::Tensor& mask = {});
LogProbabilities log_probabilities(Tape& tape, Operations& ops, const Vlm& vlm, const Value& hidden, const Pack& pack,
                                   const at::Tensor& mask = {});

// Direct preference optimisation: texts 2 i and 2 i + 1 are chosen and rejected. `reference`: [2 pairs], the sums of
// another model. Leaves the gradient of `weight` (float64, a scalar) times the sum of the losses in policy.losses.
struct Preference {
  at::Tensor losses, margins, chosen_rewards, rejected_rewards; // float64, a pair each
};
Preference preference(const LogProbabilities& policy, const at::Tensor& reference, const Pack& pack, double beta,
                      const at::Tensor& weight);

// The logarithm of the next token's distribution at each label, softened: float32 [labels, vocabulary].
at::Tensor softened(Operations& ops, const Vlm& vlm, const Value& hidden, const Pack& pack, double temperature);
// Kullback-Leibler divergence from a teacher's distribution, softened() alike, times the squared temperature: float32
// [labels]. `weights`: the gradient of each.
at::Tensor divergence(Tape& tape, Operations& ops, const Vlm& vlm, const Value& hidden, const Pack& pack,
                      const at::Tensor& teacher, double temperature, const at::Tensor& weights);

} // namespace fvlm::model
