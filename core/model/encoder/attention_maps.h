// Attention maps: the softmax weights of each query over the tokens of its frame, for traces, reports and entropies.
// Computed separately in plain ATen, because the plugins' attention does not keep them.
#pragma once
#include "model/encoder/layerwise.h"

#include <vector>

namespace fvlm::model {

struct AttentionMaps {
  std::vector<at::Tensor> layers;   // [frames, heads, tokens] each, at least float32
  std::vector<at::Tensor> by_query; // [frames, queries, tokens] each, where a frame has several: the mean over heads

  // q [frames * queries, heads * head_dim]; keys: an equal number of rows for each frame, of which its queries attend
  // to the first `tokens`. The map of a frame is the mean of its queries' maps.
  void add(const at::Tensor& q, const ops::Heads& keys, int64_t tokens, int64_t head_dim, int64_t queries = 1,
           const SharedFrames& shared = {});
  // [frames, layers, heads, tokens]; every row sums to 1.
  at::Tensor stacked() const;
  // [frames, queries, tokens], the mean over layers and heads; undefined where a frame has one query.
  at::Tensor of_queries() const;
};

} // namespace fvlm::model
