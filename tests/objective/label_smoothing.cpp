#include "label_smoothing.h"

#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>

namespace fvlm::objective {
namespace {

class LabelSmoothingLoss : public Loss {
 public:
  explicit LabelSmoothingLoss(const LabelSmoothing& term) : term_(term) {}

  bool reads_label_losses() const override { return false; }
  std::vector<at::Tensor> compute(const LossInputs& in, const ops::Value&) const override {
    const ops::Value rows = ops::gather_rows(in.tape, in.hidden, in.pack.labels.rows);
    const ops::Value logits = in.policy.decoder().logits(in.tape, in.ops, rows);
    const at::Tensor log_probs = at::log_softmax(logits.data.to(at::kFloat), -1);
    const at::Tensor index = in.pack.labels.targets.clamp_min(0).unsqueeze(-1);
    const double vocabulary = static_cast<double>(log_probs.size(-1));
    const at::Tensor target =
        at::full_like(log_probs, term_.epsilon / vocabulary)
            .scatter_add_(-1, index, at::full_like(index, 1 - term_.epsilon, log_probs.options()));
    const at::Tensor losses = (target * log_probs).sum(-1).neg();
    if (logits.requires_grad())
      logits.gradient->add(
          ((log_probs.exp() - target) * in.label_weights().unsqueeze(-1)).to(logits.data.scalar_type()));
    const at::Tensor cross_entropy = log_probs.gather(-1, index).squeeze(-1).neg();
    return {losses.mul(in.mask).sum(), in.mask.sum(), cross_entropy.mul(in.mask).sum()};
  }

 private:
  const LabelSmoothing& term_;
};

} // namespace

Settings label_smoothing_settings() {
  auto type =
      recipe::record<LabelSmoothing>("LabelSmoothing", "label_smoothing", "Cross-entropy with label smoothing.");
  type.field("on", &LabelSmoothing::on, loss_on(), "Which labels.")
      .field("epsilon", &LabelSmoothing::epsilon, recipe::number(recipe::between(0, 1)),
             "Share of the probability that goes to all tokens alike.")
      .usage("fvlm.label_smoothing { epsilon = 0.1 }");
  term_weight(type);
  return recipe::alternative<plan::ObjectiveTerm>(type.done());
}

std::unique_ptr<Loss> label_smoothing_loss(const plan::ObjectiveTerm& term) {
  return std::make_unique<LabelSmoothingLoss>(static_cast<const LabelSmoothing&>(term));
}

} // namespace fvlm::objective
