// What the reference optimizers share: hyperparameters as device scalars, and steps that a flag on the device can undo.
#pragma once
#include "ops/reference/common.h"

#include <vector>

namespace fvlm::ops::reference {

sdk::Support supports_optimizer(const fvlm_optimizer_query& query);

// A step's tensors. Scalars are float64 tensors of no dimension on the device: arithmetic on them is a launch, not a
// wait, and they do not widen what they meet.
struct OptimizerStep {
  explicit OptimizerStep(const fvlm_optimizer_step& arguments);

  at::Tensor hyper(int64_t group, int64_t index) const { return hypers.select(0, group).select(0, index); }
  // The gradient of [begin, begin + count) in float32, scaled.
  at::Tensor scaled_gradient(int64_t begin, int64_t count) const;
  // Nothing is to change, and the host knows it: the flag lies in host memory.
  bool skipped() const;

  at::Tensor master, parameter, gradient, hypers, step, scale, skip;
  std::vector<at::Tensor> states;
};

// Part of a buffer while it is being updated: the memory itself where the host can read the skip flag, else a copy that
// commit() selects or drops on the device.
class Update {
 public:
  Update(const OptimizerStep& step, const at::Tensor& buffer, int64_t begin, int64_t count);
  void commit();
  at::Tensor value;

 private:
  at::Tensor target_, skip_;
};

// Rounds the new master of [begin, begin + count) into the parameter that the model computes with.
void store_parameter(const OptimizerStep& step, int64_t begin, int64_t count);

} // namespace fvlm::ops::reference
