// uniform_lengths.h: what remains to do where all segments seem to be equally long and cuDNN was called as if they
// were, each in its place. That is known on the device alone.
//
// Two forms: `step` 1, all segments are full. 2, every second one is, and the one behind it has keys that no query
// reads: rows that ride through a vision tower with the patches of their frame.
#pragma once
#include "segment_layout.h"
#include "segments.h"

namespace fvlm::plugins {

struct UniformProblem : Segments {
  int max_q = 0, max_kv = 0, step = 1;
  float* lse = nullptr; // [full segments, heads_q, longest_q]; [tokens_q, heads_q] where they are not even
  ZeroFill zeros[3];    // out, or d_q, d_k and d_v
};

// Where the first segments are full, each at its place, and the rest empty, only rows that nobody reads are zeroed. Any
// other segments are computed here, right and slowly. Not causal.
void verify_uniform_forward(const fvlm_call& call, fvlm_dtype dtype, const UniformProblem& problem);
void verify_uniform_backward(const fvlm_call& call, fvlm_dtype dtype, const UniformProblem& problem);

} // namespace fvlm::plugins
