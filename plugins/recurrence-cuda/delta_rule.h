// delta_rule.h: the operands of the gated delta rule's kernels, with checked pointers and strides, and their launch
// functions. A state is [key_dim, head_dim], both of 128; a chunk is up to 32 successive rows of a segment.
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

inline constexpr int delta_rule_dim = 128, delta_rule_chunk = 32;

struct DeltaRule {
  Rows qkv, gates, y;
  const void *log_decay, *step_bias;
  const std::int32_t *cu_seqlens, *slots, *starts; // slots and starts NULL: segments begin with zeros
  float* states;                                   // [slots, heads, key_dim, head_dim]
  bool wide_states;                                // these begin at a multiple of 16 bytes
  fvlm_dtype dtype;
  std::int64_t rows;
  int segments, key_heads, heads;
};

// What backward computes first, in the dtype. Chunks are numbered through all segments: segment i begins at number
// cu_seqlens[i] / 32 + i, and numbers that no segment has are skipped.
struct DeltaRuleChunks {
  void *before, *d_behind; // [chunks, heads, key_dim, head_dim]: the state before each, the gradient of that after it
  void *errors, *d_added;  // [rows, width]: v - S^T k, and the gradient of beta times that
  float* sums;             // [2, chunks, heads]: each chunk's part of d_log_decay and of d_step_bias

  static __host__ __device__ std::int64_t count(std::int64_t rows, std::int64_t segments) {
    return rows / delta_rule_chunk + segments;
  }
};

struct DeltaRuleGradients {
  Rows d_y, d_qkv, d_gates;
  void *d_log_decay, *d_step_bias; // NULL: not required
  fvlm_dtype gradient;
  bool accumulate;
};

// `chunks`: keeps what backward needs, and writes no y; NULL: writes y alone.
void delta_rule_forward(cudaStream_t stream, const DeltaRule& rule, const DeltaRuleChunks* chunks);
void delta_rule_backward(cudaStream_t stream, const DeltaRule& rule, const DeltaRuleChunks& chunks,
                         const DeltaRuleGradients& gradients);

} // namespace fvlm::plugins
