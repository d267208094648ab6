// uniform_lengths.h: the check behind calls in which cuDNN was run as if all segments had the maximum length. Whether
// they do is known only on the device.
//
// `step` 1: all segments are full. `step` 2: every second segment is full, and the segment after it has keys but no
// queries: rows appended to a frame's patches in the vision tower.
#pragma once
#include "segment_layout.h"
#include "segments.h"

namespace fvlm::plugins {

struct UniformProblem : Segments {
  int max_q = 0, max_kv = 0, step = 1;
  float* lse = nullptr; // [full segments, heads_q, max_q]; [tokens_q, heads_q] if lengths are not uniform
  ZeroFill zeros[3];    // out; or d_q, d_k and d_v
};

// If the first segments are full and the others empty, only unused rows are zeroed. Otherwise the attention of all
// segments is recomputed by a slow, correct kernel. Not causal.
void verify_uniform_forward(const fvlm_call& call, fvlm_dtype dtype, const UniformProblem& problem);
void verify_uniform_backward(const fvlm_call& call, fvlm_dtype dtype, const UniformProblem& problem);

} // namespace fvlm::plugins
