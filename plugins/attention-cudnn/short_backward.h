// short_backward.h: attention backward of short segments with head_dim 128 on Hopper, in place of cuDNN's.
#pragma once
#include "segment_layout.h"
#include "segments.h"

namespace fvlm::plugins {

constexpr int short_head_dim = 128, max_short_rows = 256;

struct ShortBackwardProblem : Segments {
  bool causal = false;
  int max_q = 0, max_kv = 0;
  const float* lse = nullptr; // [segments, heads_q, max_q], as cuDNN saves it: of the queries that have a key
  ZeroFill zeros[3];          // d_q, d_k and d_v, whose padding is zeroed
};

// The workspace.
std::int64_t statistics_bytes(const ShortBackwardProblem& problem);

// Writes d_q, d_k and d_v. Deterministic.
void short_backward(const fvlm_call& call, fvlm_dtype dtype, const ShortBackwardProblem& problem, void* statistics);

} // namespace fvlm::plugins
