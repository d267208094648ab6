#include "ops/reference/optimizer.h"

#include <ATen/ops/where.h>

namespace fvlm::ops::reference {

sdk::Support supports_optimizer(const fvlm_optimizer_query& query) {
  const auto parameters = supports_number(query.device, query.parameter_dtype);
  return parameters.score == 0 ? parameters : supports_number(query.device, query.gradient_dtype);
}

OptimizerStep::OptimizerStep(const fvlm_optimizer_step& arguments)
    : master(torch_tensor(arguments.master)), parameter(torch_tensor(arguments.parameter)),
      gradient(torch_tensor(arguments.gradient)), hypers(torch_tensor(arguments.hyper).to(at::kDouble)),
      step(torch_tensor(arguments.step).select(0, 0).to(at::kDouble)),
      scale(torch_tensor(arguments.scale).select(0, 0)), skip(torch_tensor(arguments.skip).select(0, 0).ne(0)) {
  for (const auto* state : arguments.state) states.push_back(torch_tensor(state));
}

at::Tensor OptimizerStep::scaled_gradient(int64_t begin, int64_t count) const {
  return gradient.narrow(0, begin, count).to(at::kFloat) * scale;
}

bool OptimizerStep::skipped() const {
  return skip.is_cpu() && skip.item<bool>();
}

Update::Update(const OptimizerStep& step, const at::Tensor& buffer, int64_t begin, int64_t count)
    : target_(buffer.narrow(0, begin, count)), skip_(step.skip) {
  value = is_on_cpu(target_) ? target_ : target_.clone();
}

void Update::commit() {
  if (!is_on_cpu(target_)) target_.copy_(at::where(skip_, target_, value));
}

void store_parameter(const OptimizerStep& step, int64_t begin, int64_t count) {
  if (!step.parameter.defined()) return;
  const at::Tensor target = step.parameter.narrow(0, begin, count);
  const at::Tensor rounded = step.master.narrow(0, begin, count).to(target.scalar_type());
  target.copy_(is_on_cpu(target) ? rounded : at::where(step.skip, target, rounded));
}

} // namespace fvlm::ops::reference
