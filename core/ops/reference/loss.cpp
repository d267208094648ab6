// The kind loss: linear head and cross-entropy with all logits in memory, as plain PyTorch does it.
#include "ops/reference/common.h"

#include <ATen/ops/logsumexp.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

namespace fvlm::ops::reference {
namespace {

using at::Tensor;

// The tokens, with hidden states set to 0 where there is no target: such rows may hold NaN.
struct Tokens {
  Tensor has_target, index, hidden;
};
Tokens tokens_of(const fvlm_tensor* hidden, const fvlm_tensor* targets) {
  const Tensor target = torch_tensor(targets);
  const Tensor has_target = target.ge(0).unsqueeze(1);
  return {has_target, target.clamp_min(0).unsqueeze(1), at::where(has_target, torch_tensor(hidden), 0)};
}

Tensor losses_of(const Tokens& tokens, const Tensor& logits) {
  const Tensor losses = at::logsumexp(logits, 1, true) - logits.gather(1, tokens.index);
  return at::where(tokens.has_target, losses, 0).squeeze(1);
}

// Bounds the logits, in place.
void apply_softcap(const Loss::Query& query, Tensor& logits) {
  if (const double cap = sdk::Loss::softcap(query); cap != 0) logits.div_(cap).tanh_().mul_(cap);
}

// The gradient of the logits before the softcap.
Tensor gradient_of(const Loss::Query& query, const Tokens& tokens, const Tensor& logits, const fvlm_tensor* d_losses) {
  Tensor d_logits = at::softmax(logits, 1);
  d_logits.scatter_(1, tokens.index, d_logits.gather(1, tokens.index) - 1);
  d_logits.mul_(at::where(tokens.has_target, torch_tensor(d_losses).unsqueeze(1), 0));
  if (const double cap = sdk::Loss::softcap(query); cap != 0) d_logits.mul_(1 - (logits / cap).square_());
  return d_logits;
}

void store_gradients(const Tokens& tokens, const Tensor& d_logits, const Tensor& weight, fvlm_tensor* d_hidden,
                     fvlm_tensor* d_weight, bool accumulate) {
  if (d_hidden) store_product(torch_tensor(d_hidden), d_logits, weight);
  if (d_weight) store_product(torch_tensor(d_weight), d_logits.t(), tokens.hidden, accumulate);
}

} // namespace

sdk::Support Loss::supports(const Query& query) {
  return supports_numbers(query.device, query.dtype, query.gradient_dtype, "ATen, whole logits");
}

// saved[0]: the logits, after the softcap.
void Loss::requirements(const Query& query, sdk::Requirements& wanted) const {
  if (query.needs_d_hidden || query.needs_d_weight) wanted.save(wide(query.dtype), {query.tokens, query.vocab});
}

void Loss::forward(const fvlm_call&, const Query& query, const Forward& arguments) {
  const auto tokens = tokens_of(arguments.hidden, arguments.targets);
  const Tensor weight = torch_tensor(arguments.weight).t();
  Tensor logits = torch_tensor(arguments.saved[0]);
  if (logits.defined())
    store_product(logits, tokens.hidden, weight);
  else
    logits = product(tokens.hidden, weight, wide(weight.scalar_type()));
  apply_softcap(query, logits);
  store(torch_tensor(arguments.losses), losses_of(tokens, logits));
}

void Loss::backward(const fvlm_call&, const Query& query, const Backward& arguments) {
  const auto tokens = tokens_of(arguments.hidden, arguments.targets);
  const Tensor d_logits = gradient_of(query, tokens, torch_tensor(arguments.saved[0]), arguments.d_losses);
  store_gradients(tokens, d_logits, torch_tensor(arguments.weight), arguments.d_hidden, arguments.d_weight,
                  arguments.accumulate_d_weight);
}

void Loss::fused(const fvlm_call&, const Query& query, const Fused& arguments) {
  const auto tokens = tokens_of(arguments.hidden, arguments.targets);
  const Tensor weight = torch_tensor(arguments.weight);
  Tensor logits = product(tokens.hidden, weight.t(), wide(weight.scalar_type()));
  apply_softcap(query, logits);
  store(torch_tensor(arguments.losses), losses_of(tokens, logits));
  logits = gradient_of(query, tokens, logits, arguments.d_losses);
  store_gradients(tokens, logits, weight, arguments.d_hidden, arguments.d_weight, arguments.accumulate_d_weight);
}

} // namespace fvlm::ops::reference
