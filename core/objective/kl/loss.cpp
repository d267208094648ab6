#include "objective/loss.h"

#include "model/objectives.h"
#include "objective/kl/settings.h"

#include <ATen/TensorOperators.h>

namespace fvlm::objective {
namespace {

class KlLoss : public Loss {
 public:
  explicit KlLoss(const Kl& term) : term_(term) {}

  bool reads_label_losses() const override { return false; }
  std::vector<at::Tensor> compute(const LossInputs& in, const ops::Value&) const override {
    const auto& [rows, teacher_rows, weights, cached] = *in.compared;
    const at::Tensor teacher =
        model::log_softmax_at_temperature(in.ops, *in.teacher, in.teacher_hidden(), term_.temperature);
    const at::Tensor divergences = model::kl_divergence(in.tape, in.ops, in.policy, in.hidden, rows, teacher,
                                                        term_.temperature, weights * in.weight);
    return {divergences.mul(weights).sum(), weights.sum()};
  }

 private:
  const Kl& term_;
};

} // namespace

std::unique_ptr<Loss> kl_loss(const plan::ObjectiveTerm& term) {
  return std::make_unique<KlLoss>(static_cast<const Kl&>(term));
}

} // namespace fvlm::objective
