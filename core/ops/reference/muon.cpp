// Muon as torch.optim.Muon computes it, including its roundings: momentum, then orthogonalization of the update by
// Newton-Schulz iterations, one matrix at a time.
#include "ops/reference/optimizer.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <cmath>

namespace fvlm::ops::reference {
namespace {

using at::Tensor;

Tensor orthogonalized(const Tensor& update, const Tensor& eps) {
  const bool tall = update.size(0) > update.size(1);
  Tensor x = update.to(at::kBFloat16);
  if (tall) x = x.t();
  x.div_(at::maximum(x.norm(), eps.to(at::kBFloat16)));
  for (int iteration = 0; iteration < 5; ++iteration) {
    const Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, -4.7750, 2.0315), x, 3.4445);
  }
  return tall ? x.t() : x;
}

void update(const OptimizerStep& step, const fvlm_optimizer_segment& segment) {
  const int64_t count = segment.rows * segment.cols;
  const auto hyper = [&](int64_t index) { return step.hyper(segment.group, index); };
  const Tensor lr = hyper(0), momentum = hyper(1);
  Update master(step, step.master, segment.offset, count), buffer(step, step.states[0], segment.offset, count);

  const Tensor gradient = step.scaled_gradient(segment.offset, count);
  buffer.value.lerp_(gradient, (1 - momentum).to(at::kFloat));
  const Tensor look_ahead = at::where(hyper(2).ne(0), momentum, at::ones_like(momentum)).to(at::kFloat);
  const Tensor direction = at::lerp(gradient, buffer.value, look_ahead).view({segment.rows, segment.cols});
  const double ratio = std::sqrt(std::max(1.0, static_cast<double>(segment.rows) / static_cast<double>(segment.cols)));
  const Tensor change = orthogonalized(direction, hyper(4)).to(at::kFloat).mul_(lr * ratio);
  master.value.mul_(1 - lr * hyper(3)).sub_(change.reshape({count}));

  buffer.commit();
  master.commit();
  store_parameter(step, segment.offset, count);
}

} // namespace

sdk::Support Muon::supports(const Query& query) {
  for (int64_t index = 0; index < query.segment_count; ++index)
    if (query.segments[index].rows == 1)
      return sdk::refuse("segment %lld is a vector, and muon takes matrices", static_cast<long long>(index));
  const auto numbers = supports_optimizer(query);
  return numbers.score == 0 ? numbers : sdk::accept(1, "ATen, Newton-Schulz in bfloat16");
}

sdk::States Muon::states(const Query&) {
  return {{"momentum", {FVLM_FLOAT, 32, 1}}};
}

void Muon::step(const fvlm_call&, const Query& query, const Step& arguments) {
  const OptimizerStep step(arguments);
  if (step.skipped()) return;
  for (int64_t index = 0; index < query.segment_count; ++index)
    if (query.segments[index].rows * query.segments[index].cols > 0) update(step, query.segments[index]);
}

} // namespace fvlm::ops::reference
