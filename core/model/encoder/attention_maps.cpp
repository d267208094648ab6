#include "model/encoder/attention_maps.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>

#include <cmath>

namespace fvlm::model {

void AttentionMaps::add(const at::Tensor& q, const ops::Heads& keys, int64_t tokens, int64_t head_dim, int64_t queries,
                        const SharedFrames& shared) {
  const int64_t frames = q.size(0) / queries, encoded = shared.source.defined() ? shared.count : frames,
                rows = keys.value.data.size(0) / encoded;
  const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor k = keys.value.data.narrow(1, keys.column, keys.count * head_dim)
                     .to(wide)
                     .view({encoded, rows, keys.count, head_dim})
                     .narrow(1, 0, tokens)
                     .transpose(1, 2);
  if (shared.source.defined()) k = k.index_select(0, shared.source);
  const at::Tensor scaled = (q.to(wide) / std::sqrt(static_cast<double>(head_dim)))
                                .view({frames, queries, keys.count, head_dim})
                                .permute({0, 2, 3, 1});
  const at::Tensor weights = at::softmax(at::matmul(k, scaled), 2); // [frames, heads, tokens, queries]
  layers.push_back(weights.mean(3));
  if (queries > 1) by_query.push_back(weights.mean(1).transpose(1, 2));
}

at::Tensor AttentionMaps::stacked() const {
  return at::stack(layers, 1);
}

at::Tensor AttentionMaps::of_queries() const {
  return by_query.empty() ? at::Tensor() : at::stack(by_query).mean(0);
}

} // namespace fvlm::model
