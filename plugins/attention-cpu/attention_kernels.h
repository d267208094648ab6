// attention_kernels.h: the interface of the code that is compiled once per instruction set: plain pointers, and strides
// in elements.
#pragma once

#include "common/level_table.h"

#include <cstdint>

namespace fvlm::plugins {

// A [tokens, heads, head_dim] tensor whose last dimension is contiguous. Of keys in pages: [pages, page_rows, heads,
// head_dim].
struct HeadRows {
  void* data;
  int64_t row, head, page = 0;
};

struct AttentionProblem {
  HeadRows q, k, v, out, d_out, d_q, d_k, d_v;
  float* log_sum_exp; // [tokens_q, heads_q]: log2 of the sum of exponentials; NULL in a forward without a backward
  bool is_bfloat16;   // whether the elements are bfloat16 instead of float32
  bool causal;
  int heads_q, heads_kv, head_dim;
  int64_t max_seqlen_q, max_seqlen_kv;
  float scale;
  int64_t page_rows; // of keys and values; 0: they are not in pages
};

// The query rows [q_begin, q_begin + q_count) of the pack, for all query heads of one key head. q_offset is the
// position of the first one in its segment, which has q_total query rows. Keys in pages: the first kv_count rows of
// `pages`, and kv_begin is 0.
struct AttentionTask {
  int64_t q_begin, q_count, q_offset, q_total;
  int64_t kv_begin, kv_count;
  int kv_head;
  const int32_t* pages = nullptr;
};

struct AttentionKernels {
  // Floats of scratch per worker.
  int64_t (*forward_scratch)(const AttentionProblem& problem);
  int64_t (*backward_scratch)(const AttentionProblem& problem);
  void (*forward)(const AttentionProblem& problem, const AttentionTask& task, float* scratch);
  // A backward task is a whole segment: q_count == q_total.
  void (*backward)(const AttentionProblem& problem, const AttentionTask& task, float* scratch);
};

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(AttentionKernels, attention_kernels)
