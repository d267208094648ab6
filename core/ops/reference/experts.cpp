// A mixture of experts in plain ATen.
#include "ops/reference/common.h"

#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace fvlm::ops::reference {

void Kernels::experts_forward(const fvlm_call&, const Query& query, const fvlm_experts_forward& a) {
  if (query.rows == 0) return;
  using at::Tensor;
  const Tensor logits = upcast(a.logits),
               scores = query.options & FVLM_SIGMOID_ROUTER ? at::sigmoid(logits) : at::softmax(logits, 1);
  const Tensor by = query.options & FVLM_WITH_BIAS ? scores + upcast(a.bias) : scores;
  const Tensor order = std::get<1>(at::sort(by, /*stable=*/true, /*dim=*/1, /*descending=*/true)),
               chosen = order.narrow(1, 0, query.chosen);
  Tensor weights = scores.gather(1, chosen);
  if (query.options & FVLM_NORMALIZED_ROUTER) weights = weights / (weights.sum(1, true) + query.epsilon);
  // Every expert computes all rows, and those that it is not chosen by have the weight 0: nothing is read back.
  const Tensor of_all = at::zeros_like(scores).scatter_(1, chosen, weights * query.router_scale);
  const int bits = query.options & FVLM_INT4_WEIGHTS ? 4 : query.options & FVLM_INT8_WEIGHTS ? 8 : 16;
  const auto matrices = [&](const fvlm_tensor* weight, const fvlm_tensor* weight_scales, int64_t cols) {
    return bits == 16 ? torch_tensor(weight) : dequantized(bits, weight, weight_scales, cols, scores.scalar_type());
  };
  const Tensor x = torch_tensor(a.x), gate_up = matrices(a.gate_up, a.gate_up_scales, query.width),
               down = matrices(a.down, a.down_scales, query.inner);
  Tensor y = at::zeros({query.rows, query.width}, scores.options());
  for (int64_t expert = 0; expert < query.experts; ++expert) {
    const auto halves = product(x, gate_up[expert].t(), scores.scalar_type()).chunk(2, 1);
    const Tensor out = product(at::silu(halves[0]) * halves[1], upcast(down[expert]).t(), scores.scalar_type());
    const Tensor share = of_all.select(1, expert).unsqueeze(1);
    y += (out * share).masked_fill_(share.eq(0), 0);
  }
  store(torch_tensor(a.y), y);
}

} // namespace fvlm::ops::reference
