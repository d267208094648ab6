#include "objective/loss.h"

#include "model/objectives.h"
#include "objective/dpo/preference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

namespace fvlm::objective {
namespace {

class DpoLoss : public Loss {
 public:
  explicit DpoLoss(const Dpo& term) : term_(term) {}

  bool reads_label_losses() const override { return true; }
  std::vector<at::Tensor> compute(const LossInputs& in, const ops::Value& label_losses) const override {
    const auto policy = model::log_probabilities(label_losses, in.pack, in.mask);
    const at::Tensor lengths = term_.averages() ? text_lengths(in) : at::Tensor();
    const at::Tensor& used = in.used_pairs;
    at::Tensor ours = policy.sum.narrow(0, 0, 2 * used.size(0)),
               reference = term_.reads_reference() ? in.reference_log_probs() : at::Tensor();
    if (lengths.defined()) {
      ours = ours / lengths;
      if (reference.defined()) reference = reference / lengths;
    }
    const Preference made =
        preference(term_, ours.view({-1, 2}), reference.defined() ? reference.view({-1, 2}) : reference, used);
    if (label_losses.requires_grad()) {
      const at::Tensor gradient = (made.gradient * used.unsqueeze(1)).reshape(-1) * in.weight;
      model::add_text_gradient(policy, in.pack, lengths.defined() ? gradient / lengths : gradient);
    }
    const at::Tensor chosen = made.rewards.select(1, 0), rejected = made.rewards.select(1, 1);
    const auto sum = [&used](const at::Tensor& of_pairs) { return (of_pairs * used).sum(); };
    std::vector<at::Tensor> sums{sum(made.losses), used.sum(),    sum((chosen - rejected).gt(0)),
                                 sum(chosen),      sum(rejected), sum(chosen - rejected)};
    for (const at::Tensor& figure : made.figures) sums.push_back(sum(figure));
    return sums;
  }

 private:
  // Labels of each text, 1 at least.
  static at::Tensor text_lengths(const LossInputs& in) {
    const at::Tensor counts = at::zeros({in.pack.texts.cu_seqlens.size(0) - 1}, in.weight.options());
    return counts.index_add_(0, in.pack.labels.sequences, in.mask.to(at::kDouble))
        .narrow(0, 0, 2 * in.used_pairs.size(0))
        .clamp_min(1);
  }

  const Dpo& term_;
};

} // namespace

std::unique_ptr<Loss> dpo_loss(const plan::ObjectiveTerm& term) {
  return std::make_unique<DpoLoss>(static_cast<const Dpo&>(term));
}

} // namespace fvlm::objective
