#include "model/attention_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/xlogy.h>

namespace fvlm::model {

at::Tensor attention_entropies(const at::Tensor& attention) {
  const auto rows = static_cast<double>(attention.size(1) * attention.size(2));
  return at::xlogy(attention, attention).flatten(1).sum(1, false, at::kDouble).neg() / rows;
}

} // namespace fvlm::model
