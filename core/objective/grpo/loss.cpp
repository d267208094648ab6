#include "objective/loss.h"

#include "objective/grpo/settings.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

namespace fvlm::objective {
namespace {

// Answers are drawn with the weights whose gradient is taken. So the ratio of both policies is 1, and the gradient of
// an answer's log-probability times its advantage is all there is to compute.
class GrpoLoss : public Loss {
 public:
  explicit GrpoLoss(const Grpo& term) : term_(term) {}

  bool reads_label_losses() const override { return true; }
  at::Tensor known_gradient(const LossInputs& in) const override {
    return term_.kl > 0 ? at::Tensor() : in.label_weights() * weight(in) * advantage(in);
  }
  std::vector<at::Tensor> compute(const LossInputs& in, const ops::Value& label_losses) const override {
    at::Tensor losses = label_losses.data * advantage(in), kl;
    if (term_.kl > 0) {
      // The logarithm of reference over policy. Labels that are not learnt may be far apart.
      const at::Tensor difference = at::where(in.mask > 0, label_losses.data - in.reference_losses(), 0.0);
      kl = difference.exp() - difference - 1;
      losses = losses + kl * term_.kl;
      if (label_losses.requires_grad()) {
        const at::Tensor by_loss = advantage(in) + (difference.exp() - 1) * term_.kl;
        label_losses.gradient->add(in.label_weights() * weight(in) * by_loss);
      }
    }
    const auto sum = [&](const at::Tensor& of_labels) { return (of_labels * in.mask).sum(); };
    std::vector<at::Tensor> sums{sum(losses * weight(in)), in.mask.sum()}; // the mask of each answer comes to 1
    for (int64_t figure = first_figure; figure < in.outcomes.size(0); ++figure)
      sums.push_back(sum(in.outcomes[figure]));
    if (kl.defined()) sums.push_back(sum(kl));
    return sums;
  }

 private:
  static constexpr int64_t first_figure = 2; // of outcome_values, in the order of Grpo::figures()
  static at::Tensor weight(const LossInputs& in) { return in.outcomes[0]; }
  static at::Tensor advantage(const LossInputs& in) { return in.outcomes[1]; }
  const Grpo& term_;
};

} // namespace

std::unique_ptr<Loss> grpo_loss(const plan::ObjectiveTerm& term) {
  return std::make_unique<GrpoLoss>(static_cast<const Grpo&>(term));
}

} // namespace fvlm::objective
