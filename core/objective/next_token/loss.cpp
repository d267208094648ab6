#include "objective/loss.h"

#include <ATen/TensorOperators.h>

namespace fvlm::objective {
namespace {

class NextTokenLoss : public Loss {
 public:
  bool reads_label_losses() const override { return true; }
  at::Tensor known_gradient(const LossInputs& in) const override { return in.label_weights(); }
  std::vector<at::Tensor> compute(const LossInputs& in, const ops::Value& label_losses) const override {
    return {label_losses.data.mul(in.mask).sum(), in.mask.sum()};
  }
};

} // namespace

std::unique_ptr<Loss> next_token_loss(const plan::ObjectiveTerm&) {
  return std::make_unique<NextTokenLoss>();
}

} // namespace fvlm::objective
