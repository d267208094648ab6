#include "model/objectives.h"

#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace fvlm::model {
namespace {

at::Tensor log_softmax_at_temperature(const at::Tensor& logits, double temperature) {
  constexpr bool copies = true;
  return at::log_softmax(logits.to(at::kFloat, false, copies).div_(temperature), -1);
}

Value label_rows(Tape& tape, const Model& model, const Value& hidden, const Pack& pack) {
  return model.decoder().head_rows(tape, ops::gather_rows(tape, hidden, pack.labels.rows));
}

} // namespace

at::Tensor next_token_loss(Tape& tape, Operations& ops, const Model& model, const Value& hidden, const Pack& pack,
                           const at::Tensor& weights) {
  const Value rows = label_rows(tape, model, hidden, pack);
  return ops.weighted_cross_entropy(tape, rows, model.decoder().head(), pack.labels.targets, weights,
                                    model.decoder().softcap());
}

Value label_losses(Tape& tape, Operations& ops, const Model& model, const Value& hidden, const Pack& pack) {
  const Value rows = label_rows(tape, model, hidden, pack);
  return ops.cross_entropy(tape, rows, model.decoder().head(), pack.labels.targets, model.decoder().softcap());
}

LogProbabilities log_probabilities(const Value& losses, const Pack& pack, const at::Tensor& mask) {
  const at::Tensor counted = (mask.defined() ? losses.data * mask : losses.data).to(at::kDouble);
  const at::Tensor sums = at::zeros({pack.texts.cu_seqlens.size(0) - 1}, counted.options());
  return {losses, mask, sums.index_add_(0, pack.labels.sequences, counted).neg_()};
}

LogProbabilities log_probabilities(Tape& tape, Operations& ops, const Model& model, const Value& hidden,
                                   const Pack& pack, const at::Tensor& mask) {
  return log_probabilities(label_losses(tape, ops, model, hidden, pack), pack, mask);
}

// A label's loss is the opposite of its log-probability.
void add_text_gradient(const LogProbabilities& policy, const Pack& pack, const at::Tensor& gradient) {
  const at::Tensor of_text = at::zeros_like(policy.sum);
  of_text.narrow(0, 0, gradient.size(0)).copy_(gradient.neg());
  at::Tensor of_label = of_text.index_select(0, pack.labels.sequences).to(policy.losses.data.scalar_type());
  policy.losses.gradient->add(policy.mask.defined() ? of_label.mul_(policy.mask) : of_label);
}

DpoLoss dpo_loss(const LogProbabilities& policy, const at::Tensor& reference, const Pack& pack, double beta,
                 const at::Tensor& weight) {
  const int64_t texts = reference.size(0);
  const at::Tensor rewards = ((policy.sum.narrow(0, 0, texts) - reference) * beta).view({-1, 2});
  DpoLoss p;
  p.chosen_rewards = rewards.select(1, 0);
  p.rejected_rewards = rewards.select(1, 1);
  p.margins = p.chosen_rewards - p.rejected_rewards;
  p.losses = at::log_sigmoid(p.margins).neg();
  if (!policy.losses.requires_grad()) return p;
  // d loss / d log-probability is -sigmoid(-margin) beta for the chosen text, the opposite for the rejected one.
  const at::Tensor gradient = at::sigmoid(p.margins.neg()) * (weight * beta);
  add_text_gradient(policy, pack, at::stack({gradient.neg(), gradient}, 1).view(-1));
  return p;
}

at::Tensor log_softmax_at_temperature(Operations& ops, const Model& model, const at::Tensor& hidden,
                                      double temperature) {
  Tape none(Tape::Mode::forward_only);
  return log_softmax_at_temperature(model.decoder().logits(none, ops, Value(hidden)).data, temperature);
}

at::Tensor kl_divergence(Tape& tape, Operations& ops, const Model& model, const Value& hidden, const at::Tensor& rows,
                         const at::Tensor& teacher, double temperature, const at::Tensor& weights) {
  const Value logits = model.decoder().logits(tape, ops, ops::gather_rows(tape, hidden, rows));
  // In place: with a large vocabulary, such tensors are most of the pass's memory.
  at::Tensor policy = log_softmax_at_temperature(logits.data, temperature);
  const at::Tensor target = teacher.exp();
  at::Tensor divergences = (teacher - policy).mul_(target).sum(-1) * (temperature * temperature);
  if (logits.requires_grad())
    logits.gradient->add(
        policy.exp_().sub_(target).mul_((weights * temperature).unsqueeze(-1)).to(logits.data.scalar_type()));
  return divergences;
}

} // namespace fvlm::model
