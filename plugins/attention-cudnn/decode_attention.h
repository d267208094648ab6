// decode_attention.h: attention of at most one query a segment, where all that matters is to read keys and values once,
// and in backward to write their gradients once.
#pragma once
#include "segments.h"

#include <fvlm/cuda.hpp>

namespace fvlm::plugins {

struct DecodeProblem : Segments {
  float* lse = nullptr; // [segments, heads_q], of scaled scores; NULL in a forward that nothing follows
  int uniform_keys = 0; // not 0: the first segments have as many and a query each, and fill all rows
};

// Head dimensions and groups of query heads that the kernels are compiled for.
bool decode_supported(int head_dim, int heads_q, int heads_kv);

void decode_forward(const fvlm_call& call, fvlm_dtype dtype, const DecodeProblem& problem);
void decode_backward(const fvlm_call& call, fvlm_dtype dtype, const DecodeProblem& problem);

} // namespace fvlm::plugins
