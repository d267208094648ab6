// Attention maps: the softmax weights of each query over the tokens of its frame, for traces, reports and entropies.
// Computed separately in plain ATen, because the plugins' attention does not keep them.
#pragma once
#include "ops/operations.h"

#include <vector>

namespace fvlm::model {

struct AttentionMaps {
  std::vector<at::Tensor> layers; // [queries, heads, tokens] each, at least float32

  // q [queries, heads * head_dim]; keys: an equal number of rows for each query, of which it attends to the first
  // `tokens`.
  void add(const at::Tensor& q, const ops::Heads& keys, int64_t tokens, int64_t head_dim);
  // [queries, layers, heads, tokens]; every row sums to 1.
  at::Tensor stacked() const;
};

} // namespace fvlm::model
