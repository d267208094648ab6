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
    // A teacher with a prompt of its own has rows for the labels that such terms read, and no others.
    at::Tensor rows = in.pack.labels.rows, mask = in.mask;
    if (const model::Labels& own = in.teacher_pack->labels; in.teacher_pack != &in.pack) {
      rows = rows.index_select(0, own.targets);
      mask = mask.index_select(0, own.targets) * own.weights;
    }
    const at::Tensor teacher = model::log_softmax_at_temperature(in.ops, *in.teacher, in.teacher_hidden(),
                                                                 in.teacher_pack->labels.rows, term_.temperature);
    const at::Tensor divergences =
        model::kl_divergence(in.tape, in.ops, in.policy, in.hidden, rows, teacher, term_.temperature, mask * in.weight);
    return {divergences.mul(mask).sum(), mask.sum()};
  }

 private:
  const Kl& term_;
};

} // namespace

std::unique_ptr<Loss> kl_loss(const plan::ObjectiveTerm& term) {
  return std::make_unique<KlLoss>(static_cast<const Kl&>(term));
}

} // namespace fvlm::objective
