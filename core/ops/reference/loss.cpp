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

// Turns softmax(logits) into the gradient of the logits, in place.
void to_gradient(const Tokens& tokens, const Tensor& probabilities, const fvlm_tensor* d_losses) {
  probabilities.scatter_(1, tokens.index, probabilities.gather(1, tokens.index) - 1);
  probabilities.mul_(at::where(tokens.has_target, torch_tensor(d_losses).unsqueeze(1), 0));
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

// saved[0]: the logits.
void Loss::requirements(const Query& query, sdk::Requirements& wanted) const {
  if (query.needs_d_hidden || query.needs_d_weight) wanted.save(wide(query.dtype), {query.tokens, query.vocab});
}

void Loss::forward(const fvlm_call&, const Query&, const Forward& arguments) {
  const auto tokens = tokens_of(arguments.hidden, arguments.targets);
  const Tensor weight = torch_tensor(arguments.weight).t();
  Tensor logits = torch_tensor(arguments.saved[0]);
  if (logits.defined())
    store_product(logits, tokens.hidden, weight);
  else
    logits = product(tokens.hidden, weight, wide(weight.scalar_type()));
  store(torch_tensor(arguments.losses), losses_of(tokens, logits));
}

void Loss::backward(const fvlm_call&, const Query&, const Backward& arguments) {
  const auto tokens = tokens_of(arguments.hidden, arguments.targets);
  const Tensor d_logits = at::softmax(torch_tensor(arguments.saved[0]), 1);
  to_gradient(tokens, d_logits, arguments.d_losses);
  store_gradients(tokens, d_logits, torch_tensor(arguments.weight), arguments.d_hidden, arguments.d_weight,
                  arguments.accumulate_d_weight);
}

void Loss::fused(const fvlm_call&, const Query&, const Fused& arguments) {
  const auto tokens = tokens_of(arguments.hidden, arguments.targets);
  const Tensor weight = torch_tensor(arguments.weight);
  Tensor logits = product(tokens.hidden, weight.t(), wide(weight.scalar_type()));
  store(torch_tensor(arguments.losses), losses_of(tokens, logits));
  logits = at::softmax(logits, 1);
  to_gradient(tokens, logits, arguments.d_losses);
  store_gradients(tokens, logits, weight, arguments.d_hidden, arguments.d_weight, arguments.accumulate_d_weight);
}

} // namespace fvlm::ops::reference
