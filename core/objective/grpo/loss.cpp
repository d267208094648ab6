#include "objective/loss.h"

#include "objective/grpo/settings.h"

#include <ATen/TensorOperators.h>

namespace fvlm::objective {
namespace {

// Answers are of the very weights whose gradient is taken, so that the ratio of both policies is 1, and the gradient of
// an answer's log-probability times its advantage is all there is to compute.
class GrpoLoss : public Loss {
 public:
  explicit GrpoLoss(const Grpo& term) : term_(term) {}

  bool reads_label_losses() const override { return true; }
  at::Tensor known_gradient(const LossInputs& in) const override {
    return term_.kl > 0 ? at::Tensor() : in.label_weights() * in.outcomes[0];
  }
  std::vector<at::Tensor> compute(const LossInputs& in, const ops::Value& label_losses) const override {
    at::Tensor losses = label_losses.data * in.outcomes[0], kl;
    if (term_.kl > 0) {
      const at::Tensor difference = label_losses.data - in.reference_losses(); // log of reference over policy
      kl = difference.exp() - difference - 1;
      losses = losses + kl * term_.kl;
      if (label_losses.requires_grad()) {
        const at::Tensor by_loss = in.outcomes[0] + (difference.exp() - 1) * term_.kl;
        label_losses.gradient->add(in.label_weights() * by_loss);
      }
    }
    const auto sum = [&](const at::Tensor& of_labels) { return (of_labels * in.mask).sum(); };
    std::vector<at::Tensor> sums{sum(losses), in.mask.sum()}; // the mask of each text comes to 1
    for (int64_t figure = 1; figure < in.outcomes.size(0); ++figure) sums.push_back(sum(in.outcomes[figure]));
    if (kl.defined()) sums.push_back(sum(kl));
    return sums;
  }

 private:
  const Grpo& term_;
};

} // namespace

std::unique_ptr<Loss> grpo_loss(const plan::ObjectiveTerm& term) {
  return std::make_unique<GrpoLoss>(static_cast<const Grpo&>(term));
}

} // namespace fvlm::objective
