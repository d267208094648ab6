// one_row.h: attention of at most one query a segment, where all that matters is to read keys and values once, and in
// backward to write their gradients once.
#pragma once
#include "common/attention_operands.h"

#include <fvlm/cuda.hpp>

namespace fvlm::plugins {

struct OneRowProblem {
  const std::int32_t *cu_q = nullptr, *cu_kv = nullptr;
  int segments = 0, heads_q = 0, heads_kv = 0, head_dim = 0;
  std::int64_t tokens_q = 0, tokens_kv = 0;
  float scale = 0;
  HeadRows q, k, v, out;
  float* log_sums = nullptr;     // [segments, heads_q], of scaled scores; NULL in a forward that nothing follows
  HeadRows d_out, d_q, d_k, d_v; // d_k and d_v without data: not wanted
};

// Head dimensions and groups of query heads that the kernels are compiled for.
bool one_row_fits(int head_dim, int heads_q, int heads_kv);

void one_row_forward(const fvlm_call& call, fvlm_dtype dtype, const OneRowProblem& problem);
void one_row_backward(const fvlm_call& call, fvlm_dtype dtype, const OneRowProblem& problem);

} // namespace fvlm::plugins
