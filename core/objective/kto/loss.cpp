#include "objective/loss.h"

#include "model/objectives.h"
#include "objective/kto/settings.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

namespace fvlm::objective {
namespace {

class KtoLoss : public Loss {
 public:
  explicit KtoLoss(const Kto& term) : term_(term) {}

  bool reads_label_losses() const override { return true; }
  std::vector<at::Tensor> compute(const LossInputs& in, const ops::Value& label_losses) const override {
    const auto policy = model::log_probabilities(label_losses, in.pack, in.mask);
    const at::Tensor& used = in.used_pairs;
    const at::Tensor ratios = (policy.sum.narrow(0, 0, 2 * used.size(0)) - in.reference_log_probs()).view({-1, 2});
    // The divergence from the reference, estimated by the answers of other samples; it passes no gradient.
    const at::Tensor divergence = ((ratios.select(1, 1) * used).sum() / used.sum()).clamp_min(0);
    // 1 for good answers, -1 for others.
    const at::Tensor good = in.judgements, sign = good * 2 - 1,
                     weight = (good * term_.desirable_weight + (1 - good) * term_.undesirable_weight) * used;
    const at::Tensor margin = (ratios.select(1, 0) - divergence) * sign, value = at::sigmoid(margin * term_.beta);
    if (label_losses.requires_grad()) {
      const at::Tensor slope = value * (value - 1) * term_.beta * sign * weight * in.weight;
      model::add_text_gradient(policy, in.pack, at::stack({slope, at::zeros_like(slope)}, 1).reshape(-1));
    }
    const auto sum = [&used](const at::Tensor& of_answers) { return (of_answers * used).sum(); };
    const at::Tensor rewards = ratios.select(1, 0) * term_.beta;
    return {sum((1 - value) * weight),      used.sum(), sum(rewards), sum(rewards * sign), sum(margin.gt(0)), sum(good),
            sum(divergence.expand_as(used))};
  }

 private:
  const Kto& term_;
};

} // namespace

std::unique_ptr<Loss> kto_loss(const plan::ObjectiveTerm& term) {
  return std::make_unique<KtoLoss>(static_cast<const Kto&>(term));
}

} // namespace fvlm::objective
