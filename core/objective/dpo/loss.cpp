#include "objective/loss.h"

#include "model/objectives.h"
#include "objective/dpo/settings.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

namespace fvlm::objective {
namespace {

class DpoLoss : public Loss {
 public:
  explicit DpoLoss(const Dpo& term) : term_(term) {}

  bool reads_label_losses() const override { return true; }
  std::vector<at::Tensor> compute(const LossInputs& in, const ops::Value& label_losses) const override {
    const auto policy = model::log_probabilities(label_losses, in.pack, in.mask);
    const auto result = model::dpo_loss(policy, in.reference_log_probs(), in.pack, term_.beta, in.weight);
    return {result.losses.sum(),           at::full({}, in.pairs, result.losses.options()),
            result.margins.gt(0).sum(),    result.chosen_rewards.sum(),
            result.rejected_rewards.sum(), result.margins.sum()};
  }

 private:
  const Dpo& term_;
};

} // namespace

std::unique_ptr<Loss> dpo_loss(const plan::ObjectiveTerm& term) {
  return std::make_unique<DpoLoss>(static_cast<const Dpo&>(term));
}

} // namespace fvlm::objective
