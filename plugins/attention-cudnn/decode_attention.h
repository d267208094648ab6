// decode_attention.h: attention with at most one query per segment. It is limited by memory: keys and values should be
// read exactly once, and in backward their gradients written once.
#pragma once
#include "segments.h"

#include <fvlm/cuda.hpp>

namespace fvlm::plugins {

struct DecodeProblem : Segments {
  float* lse = nullptr; // [segments, heads_q]: logsumexp of the scaled scores; NULL in a forward without backward
  int uniform_keys = 0; // if not 0: keys of each of the first segments, which have one query each and fill all rows
};

// Head dimensions and head group sizes that the kernels are compiled for.
bool decode_supported(int head_dim, int heads_q, int heads_kv);

void decode_forward(const fvlm_call& call, fvlm_dtype dtype, const DecodeProblem& problem);
void decode_backward(const fvlm_call& call, fvlm_dtype dtype, const DecodeProblem& problem);

} // namespace fvlm::plugins
