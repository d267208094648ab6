// problem.h: the descriptor of a call that all kernels of this plugin take, and which kernels there are for which
// shapes.
//
// Grouped-query attention: the query heads that share a key head are folded into the rows of one matrix. "Flat" row f
// of a segment is query f / heads of head f % heads of the group. Tiles are then full whatever the group size, and keys
// are read once for all heads of the group.
#pragma once

#include "common/attention_operands.h"

namespace fvlm::plugins {

constexpr int head_dim = 64, frequencies = head_dim / 2;

// The group of query heads that share a key head, with division by its size as a multiplication. Exact for flat < 2^31
// / heads.
struct HeadGroup {
  int heads = 1;
  std::uint32_t reciprocal = 0x80000000u; // 2^31 / heads, rounded up

#ifdef __CUDACC__
  __device__ int row_of(int flat) const {
    return static_cast<int>(__umulhi(2 * flat, reciprocal));
  }
#endif
};

// As HeadTensor, but with strides in bytes and in 32 bits, so that an address takes one multiply-add.
struct HeadRows {
  char* data = nullptr;
  std::uint32_t row_stride = 0, head_stride = 0;
};

struct Problem {
  const std::int32_t *cu_q = nullptr, *cu_kv = nullptr;
  const std::int32_t *positions_q = nullptr, *positions_kv = nullptr; // NULL: q and k are already rotated
  int segments = 0, heads_q = 0, heads_kv = 0;
  int tokens_q = 0, tokens_kv = 0;
  HeadGroup head_group;
  bool causal = false;
  float scale = 0;
  HeadRows q, k, v, out, d_out, d_q, d_k, d_v;
  HeadRows deferred_q, deferred_d_out; // deferred queries of another call: only their share of d_k and d_v is added
  // Prefix sums of the deferred queries per segment (0 or 1 each); NULL: there are none
  const std::int32_t* cu_deferred = nullptr;
  float* lse = nullptr; // [tokens_q, heads_q]: base-2 logsumexp of the scaled scores; infinite for fully masked rows
  // [tokens_q, heads_q, head_dim] or NULL: what `out` lost when it was rounded to bfloat16, as bits 16 to 23 of the
  // float32 value (signed, to be added to the upper 16 bits). Backward needs it for delta = d_out . out: where
  // attention is nearly uniform, gradients of q and k are small differences.
  std::int8_t* out_compensation = nullptr;
  std::uint64_t steps[frequencies] = {}; // rotary angle per position of each frequency, see rotary_frequency()
};

void attention_forward(const fvlm_call& call, fvlm_dtype dtype, const Problem& problem);
struct BackwardDevice {
  int multiprocessors, shared_memory; // of a block, in bytes
};
void attention_backward(const fvlm_call& call, const BackwardDevice& device, fvlm_dtype dtype, const Problem& problem);

// single_tile_attention.cu: a warp computes a whole segment of one head.
constexpr int max_single_tile_rows = 16;
bool single_tile_supported(const Problem& problem, int longest_q, int longest_kv);
void single_tile_forward(const fvlm_call& call, fvlm_dtype dtype, const Problem& problem);
void single_tile_backward(const fvlm_call& call, fvlm_dtype dtype, const Problem& problem);

// persistent_*.cu: Hopper, not causal, no rotation, one key head per query head, segments of more than half of
// max_persistent_rows (the frames of a vision tower). A deferred query takes the shared memory row after the segment's
// queries, which are then limited to max_rows_with_deferred.
constexpr int max_persistent_rows = 272, max_rows_with_deferred = 258;
bool persistent_forward_supported(const Problem& problem); // whether TMA can access the operands
void persistent_forward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem);
bool persistent_backward_supported(const Problem& problem);
void persistent_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem);

// streamed_forward.cu: Hopper, not causal, no rotation, segments longer than max_persistent_rows.
bool streamed_forward_supported(const Problem& problem, int longest_q); // whether TMA can access the operands
void streamed_forward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem,
                      int longest_q);

// resident_kv_*.cu: Hopper, all keys of a segment stay in shared memory. Chosen where measured to be faster.
constexpr int max_resident_rows = 144, max_resident_head_group = 8;
bool resident_forward_supported(const Problem& problem, int multiprocessors, int longest_q, int longest_kv);
void resident_forward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem);
bool resident_backward_supported(const Problem& problem, int multiprocessors, int longest_q, int longest_kv);
void resident_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem,
                       int longest_q);

// tiled_backward.cu: Hopper, segments that are too long for resident keys. Takes part of the workspace.
struct TiledWorkspace {
  char *taken, *statistics, *rotated_q, *rotated_k, *rotations_q, *rotations_kv;
};
bool tiled_backward_supported(const fvlm_attention_query& query);
TiledWorkspace tiled_workspace(sdk::Workspace& workspace, const fvlm_attention_query& query);
void tiled_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem,
                    const TiledWorkspace& workspace, int longest_q, int longest_kv);

} // namespace fvlm::plugins
