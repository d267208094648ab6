// forward.cu: a block has a tile of queries of the heads that share a key head, and goes through the keys they see.
#include "rows.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

constexpr int span = 32, chunk = 256; // keys that a warp looks at at once; that the block has

// The weights of two rows' keys as they come, span by span.
struct Softmax {
  float scale; // of scores, with which weights are powers of 2
  float most[2] = {-INFINITY, -INFINITY}, total[2] = {};

  // Scores become weights, and what was summed up before is made to fit them.
  __device__ void weigh(float (&scores)[span / 8][4], float (&sum)[blocks][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest = most[h];
#pragma unroll
      for (const auto& score : scores) largest = fmaxf(largest, fmaxf(score[2 * h], score[2 * h + 1]));
      largest = most_of_four(largest);
      const float zero = largest == -INFINITY ? 0 : largest * scale; // no key is seen yet
      const float shrink = power_of_2(most[h] * scale - zero);
      most[h] = largest;
      total[h] *= shrink;
#pragma unroll
      for (auto& score : scores)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) total[h] += score[i] = power_of_2(score[i] * scale - zero);
#pragma unroll
      for (auto& block : sum) block[2 * h] *= shrink, block[2 * h + 1] *= shrink;
    }
  }
};

template <class T>
__global__ void __launch_bounds__(threads, 2) forward_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(128) char memory[];
  __shared__ std::uint64_t steps[frequencies];
  const int slot = static_cast<int>(blockIdx.x) / p.heads_kv, head_kv = static_cast<int>(blockIdx.x) % p.heads_kv;
  if (thread_index() < frequencies) steps[thread_index()] = p.steps[thread_index()];
  const Place place = find_place<queries>(p, false, slot);
  const Queries own(p, place, head_kv);
  if (place.padding)
    return zero_rows<T, queries>(p.out, p.sharing, own.rows.head, place.tile, place.begin_q, p.tokens_q);
  if (place.tile * queries >= own.rows.count) return;

  Keys<T, chunk> keys(p, place, head_kv, memory, steps);
  const Tile mine{memory + keys.bytes + warp_index() * rows_of_warp * row_bytes};
  std::int32_t* const positions =
      reinterpret_cast<std::int32_t*>(memory + keys.bytes + queries * row_bytes) + warp_index() * rows_of_warp;
  const int end = own.seen_by_block();
  copy_rows<T>(own.rows, p.q, mine);
  copy_positions(own.rows, p.positions_q, positions);
  end_group();
  keys.template fetch<span>(0, min(chunk, end));
  end_group();
  const ThreadRows rows(own);
  wait_for_copies<1>();
  __syncwarp();
  if (p.positions_q) turn_rows<T>(mine, positions, steps);
  Fragment q[head_dim / 16];
#pragma unroll
  for (int step = 0; step < head_dim / 16; ++step) q[step] = left(mine, 0, step);

  const int seen_by_all = own.seen_by_all();
  float sum[blocks][4] = {};
  Softmax softmax{p.scale * log2_e};
  keys.template walk<span>(end, own.seen_by_warp(), [&](int begin, const Tile& k, const Tile& v) {
    float scores[span / 8][4] = {};
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step)
#pragma unroll
      for (int pair = 0; pair < span / 16; ++pair)
        multiply_add<T>(scores[2 * pair], scores[2 * pair + 1], q[step], right_of_rows(k, 16 * pair, step));
    if (begin + span > seen_by_all) {
#pragma unroll
      for (int b = 0; b < span / 8; ++b)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (begin + 8 * b + column_of(i) >= rows.seen[i / 2]) scores[b][i] = -INFINITY;
    }
    softmax.weigh(scores, sum);
#pragma unroll
    for (int step = 0; step < span / 16; ++step) {
      const Fragment weights = as_left<T>(scores[2 * step], scores[2 * step + 1]);
#pragma unroll
      for (int pair = 0; pair < blocks / 2; ++pair)
        multiply_add<T>(sum[2 * pair], sum[2 * pair + 1], weights, right_of_columns(v, 16 * step, pair));
    }
  });

  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = sum_of_four(softmax.total[h]);
    factor[h] = total > 0 ? 1 / total : 0;
    if (p.log_sums && part_index() == 0 && rows.there[h])
      p.log_sums[rows.token[h] * p.heads_q + rows.head[h]] =
          total > 0 ? softmax.most[h] * softmax.scale + log2f(total) : INFINITY;
  }
  store_rows<T>(own.rows, p.out, mine, sum, factor);
  if constexpr (std::is_same_v<T, BFloat16>)
    if (p.out_rest) store_rests(own.rows, p.out_rest, p.heads_q, mine, sum, factor);
}

} // namespace

void attention_forward(const fvlm_call& call, fvlm_dtype dtype, const Problem& p) {
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    enqueue(call, forward_kernel<T>, slots_of(p.tokens_q, p.sharing.heads, queries, p.segments),
            Keys<T, chunk>::bytes + queries * (row_bytes + 4), p);
  });
}

} // namespace fvlm::plugins
