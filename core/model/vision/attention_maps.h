// Where queries look: the softmax weights with which each reads the tokens of its frame. For traces, reports and
// entropies, computed in plain ATen beside the attention of the plugins, which keeps none.
#pragma once
#include "ops/operations.h"

#include <vector>

namespace fvlm::model {

struct AttentionMaps {
  std::vector<at::Tensor> layers; // one for each that was read: [queries, heads, tokens], at least float32

  // q [queries, heads * head_dim]; keys: as many rows after each other for every query, of which it reads the first
  // `tokens`.
  void add(const at::Tensor& q, const ops::Heads& keys, int64_t tokens, int64_t head_dim);
  // [queries, layers, heads, tokens]; every row sums to 1.
  at::Tensor joined() const;
};

} // namespace fvlm::model
