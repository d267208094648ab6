// attention_kernels.h: what the plugin's C++ side asks of the code that is compiled for each
// instruction set. Plain pointers and strides, counted in elements.
#pragma once

#include "common/level_table.h"

#include <cstdint>

namespace fvlm::plugins {

// A [tokens, heads, head_dim] tensor whose last dimension is contiguous.
struct HeadRows {
  void* data;
  int64_t row, head;
};

struct AttentionProblem {
  HeadRows q, k, v, out, d_out, d_q, d_k, d_v;
  float* log_sum; // [tokens_q, heads_q]: log2 of the sum of exponentials; NULL in a forward that nothing follows
  bool bfloat;    // the elements are bfloat16, else float32
  bool causal;
  int heads_q, heads_kv, head_dim;
  int64_t max_seqlen_q, max_seqlen_kv;
  float scale;
};

// The query rows [q_begin, q_begin + q_count) of the pack, for all query heads that read one key head. q_offset is the
// first one's place in its segment, of whose q_total rows they are part.
struct AttentionTask {
  int64_t q_begin, q_count, q_offset, q_total;
  int64_t kv_begin, kv_count;
  int kv_head;
};

struct AttentionKernels {
  // Floats of scratch that one worker needs.
  int64_t (*forward_scratch)(const AttentionProblem& problem);
  int64_t (*backward_scratch)(const AttentionProblem& problem);
  void (*forward)(const AttentionProblem& problem, const AttentionTask& task, float* scratch);
  // A backward task is a whole segment: q_count == q_total.
  void (*backward)(const AttentionProblem& problem, const AttentionTask& task, float* scratch);
};

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(AttentionKernels, attention_kernels)
