// Shared by the reference optimizers: hyperparameters as device scalars, and steps that a flag on the device can skip.
#pragma once
#include "ops/reference/common.h"

#include <vector>

namespace fvlm::ops::reference {

sdk::Support supports_optimizer(const fvlm_optimizer_query& query);

// The tensors of a step. Scalars are zero-dimensional float64 tensors on the device: arithmetic on them does not
// synchronize, and by PyTorch's type promotion does not change the type of a float32 operand.
struct OptimizerStep {
  explicit OptimizerStep(const fvlm_optimizer_step& arguments);

  at::Tensor hyper(int64_t group, int64_t index) const { return hypers.select(0, group).select(0, index); }
  // scale * gradient[begin, begin + count) in float32.
  at::Tensor scaled_gradient(int64_t begin, int64_t count) const;
  // Whether the step is to be skipped and the host can tell, because the flag is in host memory.
  bool skipped() const;

  at::Tensor master, parameter, gradient, hypers, step, scale, skip;
  std::vector<at::Tensor> states;
};

// A part of a buffer during an update: the memory itself on the CPU, where skipped() has been asked; else a copy, which
// commit() writes back unless the device's flag says to skip.
class Update {
 public:
  Update(const OptimizerStep& step, const at::Tensor& buffer, int64_t begin, int64_t count);
  void commit();
  at::Tensor value;

 private:
  at::Tensor target_, skip_;
};

// Rounds the new master weights [begin, begin + count) to the type of the parameter that the model computes with.
void store_parameter(const OptimizerStep& step, int64_t begin, int64_t count);

} // namespace fvlm::ops::reference
