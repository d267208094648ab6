#include "model/objectives.h"

#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

namespace fvlm::model {

NextToken next_token(Tape& tape, Operations& ops, const Vlm& vlm, const Value& hidden, const Pack& pack,
                     const at::Tensor& weights) {
  const Value rows = ops::take_rows(tape, hidden, pack.labels.rows);
  const at::Tensor losses = ops.weighted_cross_entropy(tape, rows, vlm.decoder().head(), pack.labels.targets, weights);
  return {losses, losses.mul(weights).sum()};
}

LogProbabilities log_probabilities(Tape& tape, Operations& ops, const Vlm& vlm, const Value& hidden, const Pack& pack) {
  const Value rows = ops::take_rows(tape, hidden, pack.labels.rows);
  const Value losses = ops.cross_entropy(tape, rows, vlm.decoder().head(), pack.labels.targets);
  const at::Tensor sums = at::zeros({pack.texts.starts.size(0) - 1}, losses.data.options());
  return {losses, sums.index_add_(0, pack.labels.sequences, losses.data).neg()};
}

Preference preference(const LogProbabilities& policy, const at::Tensor& reference, const Pack& pack, double beta) {
  const at::Tensor rewards = ((policy.sum - reference) * beta).view({-1, 2});
  Preference p;
  p.chosen_rewards = rewards.select(1, 0);
  p.rejected_rewards = rewards.select(1, 1);
  const at::Tensor margins = p.chosen_rewards - p.rejected_rewards;
  p.losses = at::log_sigmoid(margins).neg();
  p.loss = p.losses.mean();
  p.margin = margins.mean();
  p.accuracy = margins.gt(0).to(margins.scalar_type()).mean();
  if (policy.losses.wants_gradient()) {
    // d loss / d log-probability: -sigmoid(-margin) beta / pairs for chosen, the opposite for rejected; a label's loss
    // is the opposite of its log-probability.
    const at::Tensor weight = at::sigmoid(margins.neg()) * (beta / static_cast<double>(margins.size(0)));
    const at::Tensor by_text = at::stack({weight, weight.neg()}, 1).view(-1);
    policy.losses.gradient->add(by_text.index_select(0, pack.labels.sequences));
  }
  return p;
}

} // namespace fvlm::model
