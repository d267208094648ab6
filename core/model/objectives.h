// What a pack's hidden states are held against.
#pragma once
#include "model/vlm.h"

namespace fvlm::model {

// Next-token cross-entropy of the pack's labels. Gradients of head and hidden states are made at once, by `weights`
// (Labels::weights where there is one pack a step).
struct NextToken {
  at::Tensor losses; // float32 [labels]; padding 0
  at::Tensor loss;   // weights x losses, a scalar
};
NextToken next_token(Tape& tape, Operations& ops, const Vlm& vlm, const Value& hidden, const Pack& pack,
                     const at::Tensor& weights);

// The sum of the log-probabilities of each text's labels: [sequences].
struct LogProbabilities {
  Value losses;   // a label
  at::Tensor sum; // of a text
};
LogProbabilities log_probabilities(Tape& tape, Operations& ops, const Vlm& vlm, const Value& hidden, const Pack& pack);

// Direct preference optimisation: texts 2 i and 2 i + 1 are chosen and rejected. Leaves its gradient in policy.losses.
struct Preference {
  at::Tensor losses;                 // a pair
  at::Tensor loss, margin, accuracy; // scalars
  at::Tensor chosen_rewards, rejected_rewards;
};
Preference preference(const LogProbabilities& policy, const at::Tensor& reference, const Pack& pack, double beta);

} // namespace fvlm::model
