// short_backward.cuh: what both kernels of the short backward know of a call.
#pragma once
#include "common/cuda_math.cuh"
#include "common/cuda_packs.cuh"
#include "short_backward.h"

namespace fvlm::plugins {

constexpr int head_dim = short_head_dim, tile_rows = 64;

// Of a tile of queries: the logsumexp of their scaled scores to base 2, infinite where a query has no key, and delta,
// the product of out and d_out.
struct alignas(16) Statistics {
  float row_lse[tile_rows], delta[tile_rows];
};

struct ShortProblem : ShortBackwardProblem {
  float scale_log2;
  Statistics* statistics; // [segments, heads_q, tiles]

  // Of the longest segment.
  __host__ __device__ int tiles() const { return ((max_q > max_kv ? max_q : max_kv) + tile_rows - 1) / tile_rows; }
  __device__ Statistics& statistics_of(int segment, int head, int tile) const {
    return statistics[(std::int64_t{segment} * heads_q + head) * tiles() + tile];
  }
};

template <class T>
__device__ T* row_of(const HeadTensor& rows, std::int64_t token, int head) {
  return static_cast<T*>(rows.data) + token * rows.row_stride + head * rows.head_stride;
}

void compute_statistics(const fvlm_call& call, fvlm_dtype dtype, const ShortProblem& problem);

} // namespace fvlm::plugins
