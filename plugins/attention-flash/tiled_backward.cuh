// tiled_backward.cuh: what both kernels of the tiled backward know of a call.
#pragma once

#include "block_tiles.cuh"
#include "warp_rows.cuh"

namespace fvlm::plugins {

constexpr int tile_rows = 64;
// Of a tile of queries, of which the first may be the second that is loaded: copies are aligned to 16 bytes.
constexpr int statistics_of_tile = tile_rows + 2;

// The base-2 logsumexp of a query's scaled scores, infinite where it has no key, and delta, the product of out and
// d_out.
struct alignas(8) Statistic {
  float row_lse, delta;
};

// Cosines and sines of a row, those of two frequencies together. Threads that read two rows use different banks.
struct Rotations {
  float4 of_pair[frequencies / 2];

  __device__ static int place(int token, int pair) { return pair ^ pair / 8 ^ (token & 1) * 6; }
};

struct TiledProblem {
  Problem call;
  int group;                   // query heads per key head
  int tiles_q, tiles_kv;       // of the longest segment
  int workers_kv;              // blocks that start with keys; the others start with queries
  int* taken;                  // how many tasks of queries and of keys blocks have taken besides their first ones
  Statistic* statistics;       // [heads_q, statistics_rows()]
  char *rotated_q, *rotated_k; // [tokens, heads, head_dim], as q and k where nothing is rotated
  Rotations *rotations_q, *rotations_kv; // [tokens and a tile]; NULL: nothing is rotated

  __host__ __device__ static int statistics_rows(int tokens) { return (tokens + statistics_of_tile + 1) / 2 * 2; }
};

void prepare_rows(const fvlm_call& call, fvlm_dtype dtype, const TiledProblem& problem);

} // namespace fvlm::plugins
