// forward.cu: the general attention forward for devices from compute capability 8.0 (flash attention with online
// softmax): any segment lengths, causal or not, grouped-query heads, rotation of q and k inside.
//
// A block of 8 warps owns 128 flat rows of queries of one key head, 16 per warp, and iterates over the keys they see:
// up to 256 keys and values in shared memory, 32 per step of mma.sync.
//
// Chosen where no specialized kernel applies. Measured on an H100 (bf16, 9:3 heads, causal; bench/LOG.md, 2026-11-22, a
// version before this one): 32 x 256 tokens 29.6 us a layer, 4 x 2,048 143 us, where cuDNN takes 36.4 and 82 us.
#include "online_softmax.cuh"
#include "warp_rows.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

constexpr int step_rows = 32, key_chunk = 256; // keys per step of a warp; keys that the block holds at once

template <class T>
__global__ void __launch_bounds__(threads, 2) forward_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(128) char memory[];
  __shared__ std::uint64_t steps[frequencies];
  const int slot = static_cast<int>(blockIdx.x) / p.heads_kv, head_kv = static_cast<int>(blockIdx.x) % p.heads_kv;
  if (thread_index() < frequencies) steps[thread_index()] = p.steps[thread_index()];
  const BlockTile block_tile = find_block_tile<queries>(p, false, slot);
  const WarpQueries own(p, block_tile, head_kv);
  if (block_tile.padding)
    return zero_rows<T, queries>(p.out, p.head_group, own.rows.head, block_tile.tile, block_tile.begin_q, p.tokens_q);
  if (block_tile.tile * queries >= own.rows.count) return;

  Keys<T, key_chunk> keys(p, block_tile, head_kv, memory, steps);
  const Tile mine{memory + keys.bytes + warp_index() * rows_of_warp * row_bytes};
  std::int32_t* const positions =
      reinterpret_cast<std::int32_t*>(memory + keys.bytes + queries * row_bytes) + warp_index() * rows_of_warp;
  const int end = own.keys_visible_to_block();
  copy_rows<T>(own.rows, p.q, mine);
  copy_positions(own.rows, p.positions_q, positions);
  cp_async_commit();
  keys.template fetch<step_rows>(0, min(key_chunk, end));
  cp_async_commit();
  const ThreadRows rows(own);
  cp_async_wait<1>();
  __syncwarp();
  if (p.positions_q) rotate_rows<T>(mine, positions, steps);
  Fragment q[head_dim / 16];
#pragma unroll
  for (int step = 0; step < head_dim / 16; ++step) q[step] = load_a(mine, 0, step);

  const int keys_visible_to_all = own.keys_visible_to_all();
  float sum[blocks][4] = {};
  OnlineSoftmax softmax{p.scale * log2_e};
  keys.template for_each_step<step_rows>(end, own.keys_visible_to_warp(), [&](int begin, const Tile& k, const Tile& v) {
    float scores[step_rows / 8][4] = {};
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step)
#pragma unroll
      for (int pair = 0; pair < step_rows / 16; ++pair)
        mma_16x8x16<T>(scores[2 * pair], scores[2 * pair + 1], q[step], load_b(k, 16 * pair, step));
    if (begin + step_rows > keys_visible_to_all) {
#pragma unroll
      for (int b = 0; b < step_rows / 8; ++b)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (begin + 8 * b + column_of(i) >= rows.visible_keys[i / 2]) scores[b][i] = -INFINITY;
    }
    softmax.template accumulate<T>(scores, v, sum);
  });

  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float row_sum = quad_sum(softmax.row_sum[h]);
    factor[h] = row_sum > 0 ? 1 / row_sum : 0;
    if (p.lse && lane_in_quad() == 0 && rows.exists[h])
      p.lse[rows.token[h] * p.heads_q + rows.head[h]] =
          row_sum > 0 ? softmax.row_max[h] * softmax.scale + log2f(row_sum) : INFINITY;
  }
  store_rows<T>(own.rows, p.out, mine, sum, factor);
  if constexpr (std::is_same_v<T, BFloat16>)
    if (p.out_compensation) store_compensation(own.rows, p.out_compensation, p.heads_q, mine, sum, factor);
}

} // namespace

void attention_forward(const fvlm_call& call, fvlm_dtype dtype, const Problem& p) {
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    enqueue(call, forward_kernel<T>, tile_slots(p.tokens_q, p.head_group.heads, queries, p.segments),
            Keys<T, key_chunk>::bytes + queries * (row_bytes + 4), p);
  });
}

} // namespace fvlm::plugins
