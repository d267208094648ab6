// problem.h: what the kernels are told of a call.
//
// The query heads that share a key head are rows of one matrix: row f of a segment ("flat") is query f / sharing of
// head f % sharing. So tiles are full whatever the sharing is, and keys are read once for all of these heads.
#pragma once

#include "common/attention_operands.h"

namespace fvlm::plugins {

constexpr int head_dim = 64, frequencies = head_dim / 2;

// Division by a number that is known before, by multiplication: right for flat < 2^31 / heads.
struct HeadGroup {
  int heads = 1;
  std::uint32_t reciprocal = 0x80000000u; // 2^31 / heads, rounded up

#ifdef __CUDACC__
  __device__ int row_of(int flat) const {
    return static_cast<int>(__umulhi(2 * flat, reciprocal));
  }
#endif
};

// HeadRows with distances in bytes, which one instruction multiplies.
struct HeadRows {
  char* data = nullptr;
  std::uint32_t row_stride = 0, head_stride = 0;
};

struct Problem {
  const std::int32_t *cu_q = nullptr, *cu_kv = nullptr;
  const std::int32_t *positions_q = nullptr, *positions_kv = nullptr; // NULL: q and k come rotated
  int segments = 0, heads_q = 0, heads_kv = 0;
  int tokens_q = 0, tokens_kv = 0;
  HeadGroup head_group;
  bool causal = false;
  float scale = 0;
  HeadRows q, k, v, out, d_out, d_q, d_k, d_v;
  HeadRows deferred_q, deferred_d_out;       // of another call's queries, which add to d_k and d_v
  const std::int32_t* cu_deferred = nullptr; // how many are before each segment's; NULL: none come
  float* lse = nullptr; // [tokens_q, heads_q], to base 2, of the scaled scores; infinite where no key is seen
  // [tokens_q, heads_q, head_dim], or NULL: what `out` lost when it was rounded to bfloat16: bits 16 to 23 of the
  // number, to be added to its first 16. The gradients of nearly uniform weights are small differences, from d_out .
  // out.
  std::int8_t* out_compensation = nullptr;
  std::uint64_t steps[frequencies] = {};
};

void attention_forward(const fvlm_call& call, fvlm_dtype dtype, const Problem& problem);
void attention_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem);
int backward_memory(); // bytes of shared memory that its blocks have, more than some devices give

// Kernels for segments of at most so many rows.
constexpr int max_single_tile_rows = 16;
bool single_tile_supported(const Problem& problem, int longest_q, int longest_kv);
void single_tile_forward(const fvlm_call& call, fvlm_dtype dtype, const Problem& problem);
void single_tile_backward(const fvlm_call& call, fvlm_dtype dtype, const Problem& problem);

// Kernels for Hopper and calls that are not causal, do not rotate, whose segments have at most so many rows, and where
// each query head has a key head of its own. A guest lies in shared memory behind the most queries that it may have
// beside it.
constexpr int max_persistent_rows = 272, max_rows_with_deferred = 258;
bool persistent_forward_supported(const Problem& problem); // whether the copy engine reads its operands
void persistent_forward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem);
bool persistent_backward_supported(const Problem& problem);
void persistent_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem);

// Kernels for Hopper and segments of at most so many rows, of which all keys lie in shared memory; where they are
// faster.
constexpr int max_resident_rows = 144, max_resident_head_group = 8;
bool resident_forward_supported(const Problem& problem, int multiprocessors, int longest_q, int longest_kv);
void resident_forward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem);
bool resident_backward_supported(const Problem& problem, int multiprocessors, int longest_q, int longest_kv);
void resident_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem,
                       int longest_q);

} // namespace fvlm::plugins
