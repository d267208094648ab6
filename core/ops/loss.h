// The language model's head and its cross-entropy, by a selected plugin: see fvlm/loss.h.
#pragma once
#include "ops/backend.h"

namespace fvlm::ops {

class Loss : public Prepared<fvlm_loss_v1> {
 public:
  Loss(Backend<fvlm_loss_v1> backend, const Query& query) : Prepared(std::move(backend), query) {}

  struct Inputs {
    at::Tensor hidden, weight, targets;
  };
  struct Output {
    at::Tensor losses; // [tokens]
    std::vector<at::Tensor> saved;
  };
  Output forward(const Inputs& inputs) const;

  // Computes those that the query asks for; the others stay undefined. With `accumulate`, d_weight has to be given and
  // is added to.
  struct Gradients {
    at::Tensor hidden, weight;
  };
  Gradients backward(const Inputs& inputs, const Output& output, const at::Tensor& d_losses, const Gradients& into = {},
                     bool accumulate = false) const;

  // Forward and backward at once, by the table's `fused` where it has one.
  struct Fused {
    at::Tensor losses;
    Gradients gradients;
  };
  Fused fused(const Inputs& inputs, const at::Tensor& d_losses, const Gradients& into = {},
              bool accumulate = false) const;

 private:
  at::Tensor new_losses(const Inputs& inputs) const;
  Gradients outputs(const Inputs& inputs, const Gradients& into) const;
};

} // namespace fvlm::ops
