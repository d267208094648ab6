// AdamW as torch.optim.AdamW computes it.
#include "ops/reference/optimizer.h"

#include <ATen/ops/pow.h>

namespace fvlm::ops::reference {
namespace {

using at::Tensor;

void update(const OptimizerStep& step, int64_t group, int64_t begin, int64_t count) {
  const Tensor lr = step.hyper(group, 0), beta1 = step.hyper(group, 1), beta2 = step.hyper(group, 2);
  const Tensor step_size = lr / (1 - at::pow(beta1, step.step));
  const Tensor root_correction = (1 - at::pow(beta2, step.step)).sqrt_();
  Update master(step, step.master, begin, count), m(step, step.states[0], begin, count),
      v(step, step.states[1], begin, count);

  const Tensor gradient = step.scaled_gradient(begin, count);
  m.value.add_((gradient - m.value).mul_(1 - beta1));
  v.value.mul_(beta2).add_(gradient.square().mul_(1 - beta2));
  const Tensor denominator = v.value.sqrt().div_(root_correction).add_(step.hyper(group, 3));
  master.value.mul_(1 - lr * step.hyper(group, 4)).addcdiv_(m.value * step_size, denominator, -1);

  m.commit();
  v.commit();
  master.commit();
  store_parameter(step, begin, count);
}

} // namespace

sdk::Support AdamW::supports(const Query& query) {
  return supports_optimizer(query);
}

sdk::States AdamW::states(const Query&) {
  return {{"m", {FVLM_FLOAT, 32, 1}}, {"v", {FVLM_FLOAT, 32, 1}}};
}

void AdamW::step(const fvlm_call&, const Query& query, const Step& arguments) {
  const OptimizerStep step(arguments);
  if (step.skipped()) return;
  // The update is elementwise, so that adjacent segments of one group can be updated as one range.
  for (int64_t index = 0; index < query.segment_count;) {
    const auto& first = query.segments[index];
    int64_t end = first.offset + first.rows * first.cols;
    for (++index; index < query.segment_count; ++index) {
      const auto& next = query.segments[index];
      if (next.group != first.group || next.offset != end) break;
      end += next.rows * next.cols;
    }
    update(step, first.group, first.offset, end - first.offset);
  }
}

} // namespace fvlm::ops::reference
