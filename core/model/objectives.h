// The losses of training, evaluation and trace, computed from a pack's hidden states. Each records its backward pass,
// to the hidden states and the head, on the tape.
#pragma once
#include "model/model.h"

namespace fvlm::model {

// Next-token cross-entropy: float32 [labels], padding 0. `weights` are the gradients of the losses, known beforehand
// (Labels::weights if a step has one pack).
at::Tensor next_token_loss(Tape& tape, Operations& ops, const Model& model, const Value& hidden, const Pack& pack,
                           const at::Tensor& weights);
// The same without known gradients: they are added to the result's gradient later.
Value label_losses(Tape& tape, Operations& ops, const Model& model, const Value& hidden, const Pack& pack);

// Log-probability of each text: summed over its labels, or those where `mask` (float32 [labels]) is 1.
struct LogProbabilities {
  Value losses;    // of each label
  at::Tensor mask; // undefined: every label counts
  at::Tensor sum;  // float64 [sequences]
};
LogProbabilities log_probabilities(const Value& losses, const Pack& pack, const at::Tensor& mask = {});
LogProbabilities log_probabilities(Tape& tape, Operations& ops, const Model& model, const Value& hidden,
                                   const Pack& pack, const at::Tensor& mask = {});

// Leaves in the policy's losses a gradient by each text's log-probability: float64, of the first texts.
void add_text_gradient(const LogProbabilities& policy, const Pack& pack, const at::Tensor& gradient);

// Direct preference optimisation: texts 2 i and 2 i + 1 are chosen and rejected. `reference`: [2 pairs], the sums of
// another model. Leaves the gradient of `weight` (float64, a scalar) times the sum of the losses in policy.losses.
struct DpoLoss {
  at::Tensor losses, margins, chosen_rewards, rejected_rewards; // float64, a pair each
};
DpoLoss dpo_loss(const LogProbabilities& policy, const at::Tensor& reference, const Pack& pack, double beta,
                 const at::Tensor& weight);

// log_softmax(logits / temperature) of each of a decoder's hidden states: float32 [states, vocabulary].
at::Tensor log_softmax_at_temperature(Operations& ops, const Model& model, const at::Tensor& hidden,
                                      double temperature);
// Kullback-Leibler divergence from a teacher's distribution, log_softmax_at_temperature() alike, at these rows of the
// hidden states, times the squared temperature: float32 [rows]. `weights`: the gradient of each.
at::Tensor kl_divergence(Tape& tape, Operations& ops, const Model& model, const Value& hidden, const at::Tensor& rows,
                         const at::Tensor& teacher, double temperature, const at::Tensor& weights);

} // namespace fvlm::model
