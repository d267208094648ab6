// backward.cu: one launch of two sorts of blocks. Those of keys have a tile of them, and go through the queries that
// see it: d_k and d_v stay in registers. Those of queries have a tile of them, and go through the keys they see: so
// does d_q. Each computes the weights anew, from their logarithms' sums; nothing is added up by two blocks.
#include "gradients.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

constexpr int span = 32; // rows of the other side that a warp looks at at once
constexpr int keys_in_block = 64, key_warps = keys_in_block / rows_of_warp, groups = warps / key_warps;
constexpr int stage_rows = groups * span, stages = 3;
constexpr int chunk = 256; // keys that a block of queries has

// What a query's row of weights comes from: the logarithm of their sum, and d_out . out.
struct alignas(8) Statistic {
  float log_sum, delta;
};

// Flat rows of queries as a block of keys goes through them, stage_rows at a time: q and d_out beside each row's
// statistic. While one stage is computed with, the next two are on their way. A quarter of a row a thread.
template <class T>
class Stages {
 public:
  static constexpr int tile_bytes = stage_rows * row_bytes, rest_bytes = stage_rows * head_dim;
  static constexpr int bytes =
      stages * (3 * tile_bytes + rest_bytes + stage_rows * static_cast<int>(sizeof(Statistic) + 4));

  __device__ Stages(const Problem& p, const WarpRows& rows, char* memory, const std::uint64_t* steps)
      : p_(p), rows_(rows), memory_(memory), steps_(steps) {}

  __device__ Tile q(int stage) const { return tile(stage, 0); }
  __device__ Tile d_out(int stage) const { return tile(stage, 1); }
  __device__ Statistic* statistics(int stage) const {
    return reinterpret_cast<Statistic*>(memory_ + stages * (3 * tile_bytes + rest_bytes)) + stage % stages * stage_rows;
  }

  // Begins to copy a stage; ends a group even where there is none any more.
  __device__ void fetch(int stage) {
    if (first(stage) < rows_.count) {
      const int flat = rows_.there(first(stage) + filled_row()), token = rows_.token(flat), head = rows_.head_of(flat);
      const T *from_q = at<T>(p_.q, token, head), *from_d = at<T>(p_.d_out, token, head),
              *from_out = at<T>(p_.out, token, head);
#pragma unroll
      for (int index = filled_part(), turn = 0; turn < 2; index += 4, ++turn) {
        copy_pack(q(stage).at(filled_row(), index), from_q + index * pack);
        copy_pack(d_out(stage).at(filled_row(), index), from_d + index * pack);
        copy_pack(out(stage).at(filled_row(), index), from_out + index * pack);
      }
      if (p_.out_rest)
        copy_pack(rests(stage, filled_part() * 2),
                  p_.out_rest + (std::int64_t{token} * p_.heads_q + head) * head_dim + filled_part() * 16);
      if (filled_part() == 0)
        copy_word(&statistics(stage)[filled_row()].log_sum, p_.log_sums + token * p_.heads_q + head);
      if (filled_part() == 1 && p_.positions_q) copy_word(positions(stage) + filled_row(), p_.positions_q + token);
    }
    end_group();
  }
  // Turns its queries and completes its statistics; waits for the warp's copies but for those of the stage behind.
  __device__ void settle(int stage) {
    wait_for_copies<1>();
    __syncwarp();
    if (first(stage) >= rows_.count) return;
    if (p_.positions_q) turn_in_place<T>(q(stage), filled_row(), filled_part(), steps_, positions(stage)[filled_row()]);
    const Tile of_d_out = d_out(stage), of_out = out(stage);
    float sum = 0;
#pragma unroll
    for (int index = filled_part(), turn = 0; turn < 2; index += 4, ++turn) {
      Pack<T, pack> one, other;
      one.load(of_d_out.at<T>(filled_row(), index));
      other.load(of_out.at<T>(filled_row(), index));
      sum += dot<T>(one, other, p_.out_rest ? *reinterpret_cast<const uint2*>(rests(stage, index)) : uint2{});
    }
    sum = sum_of_four<8>(sum);
    if (filled_part() == 0) statistics(stage)[filled_row()].delta = sum;
    if (filled_part() == 0 && first(stage) + filled_row() >= rows_.count)
      statistics(stage)[filled_row()].log_sum = INFINITY; // weight 0
  }
  __device__ int first(int stage) const {
    return rows_.first + stage * stage_rows;
  }
  __device__ int count() const {
    return (max(rows_.count - rows_.first, 0) + stage_rows - 1) / stage_rows;
  }

 private:
  __device__ Tile tile(int stage, int which) const {
    return {memory_ + (stage % stages * 3 + which) * tile_bytes};
  }
  __device__ Tile out(int stage) const {
    return tile(stage, 2);
  }
  // Of a pack of the row that the thread fills; packs lie so that neighbouring rows' do not fall on the same banks.
  __device__ char* rests(int stage, int index) const {
    return memory_ + 3 * stages * tile_bytes + stage % stages * rest_bytes + filled_row() * head_dim +
           (index ^ (filled_row() & 6)) * 8;
  }
  __device__ std::int32_t* positions(int stage) const {
    return reinterpret_cast<std::int32_t*>(statistics(0) + stages * stage_rows) + stage % stages * stage_rows;
  }

  const Problem& p_;
  const WarpRows& rows_;
  char* memory_;
  const std::uint64_t* steps_;
};

// Four warps share a tile of keys, 16 each; two such groups of warps share each stage of queries.
template <class T>
__device__ void keys_backward(const Problem& p, int slot, int head_kv, char* memory, const std::uint64_t* steps) {
  const Place place = find_place<keys_in_block>(p, true, slot);
  if (place.padding) {
    zero_rows<T, keys_in_block>(p.d_k, {}, head_kv, place.tile, place.begin_kv, p.tokens_kv);
    zero_rows<T, keys_in_block>(p.d_v, {}, head_kv, place.tile, place.begin_kv, p.tokens_kv);
    return;
  }
  const int first_key = place.tile * keys_in_block;
  if (first_key >= place.rows_kv) return;

  const int key_warp = warp_index() % key_warps, group = warp_index() / key_warps;
  const int sharing = p.sharing.heads, offset = place.rows_kv - place.rows_q;
  // The first flat row that sees a key.
  const auto needed = [&](int key) { return p.causal ? max(key - offset, 0) * sharing : 0; };
  const WarpRows queried{p.sharing, place.begin_q, needed(first_key), place.rows_q * sharing, head_kv * sharing};
  const WarpRows own{{}, place.begin_kv, first_key + key_warp * rows_of_warp, place.rows_kv, head_kv};
  const int mine[2] = {own.first + lane_index() / 4, own.first + lane_index() / 4 + 8};
  const int needed_by_mine[2] = {needed(mine[0]), needed(mine[1])};
  const int needed_by_warp = needed(own.first), needed_by_all = needed(own.first + rows_of_warp - 1);

  Keys<T, keys_in_block> keys(p, place, head_kv, memory, steps);
  Stages<T> stage(p, queried, memory + keys.bytes, steps);
  const int count = stage.count();
  keys.template fetch<keys_in_block>(first_key, first_key + keys_in_block);
  stage.fetch(0);
  stage.fetch(1);
  wait_for_copies<1>();
  __syncwarp();
  keys.settle(first_key, first_key + keys_in_block);

  const Tile k = keys.k().rows_from(key_warp * rows_of_warp), v = keys.v().rows_from(key_warp * rows_of_warp);
  const float scale = p.scale * log2_e;
  float d_k[blocks][4] = {}, d_v[blocks][4] = {};
  const auto add_up = [&](int s) {
    const int first = stage.first(s) + group * span;
    if (own.first >= own.count || first >= queried.count || first + span <= needed_by_warp) return;
    const Tile q = stage.q(s).rows_from(group * span), d_out = stage.d_out(s).rows_from(group * span);
    const Statistic* statistics = stage.statistics(s) + group * span;
    float weights[span / 8][4] = {}, d_scores[span / 8][4] = {}; // keys by queries
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step) {
      const Fragment k_rows = left(k, 0, step), v_rows = left(v, 0, step);
#pragma unroll
      for (int pair = 0; pair < span / 16; ++pair) {
        multiply_add<T>(weights[2 * pair], weights[2 * pair + 1], k_rows, right_of_rows(q, 16 * pair, step));
        multiply_add<T>(d_scores[2 * pair], d_scores[2 * pair + 1], v_rows, right_of_rows(d_out, 16 * pair, step));
      }
    }
#pragma unroll
    for (int b = 0; b < span / 8; ++b) {
      const float4 two = *reinterpret_cast<const float4*>(statistics + 8 * b + column_of(0));
      const float log_sum[4] = {two.x, two.z, two.x, two.z}, delta[4] = {two.y, two.w, two.y, two.w};
      differentiate(weights[b], d_scores[b], scale, log_sum, delta, [&](int i) {
        return first >= needed_by_all || first + 8 * b + column_of(i) >= needed_by_mine[i / 2];
      });
    }
#pragma unroll
    for (int step = 0; step < span / 16; ++step) {
      const Fragment by_weights = as_left<T>(weights[2 * step], weights[2 * step + 1]);
      const Fragment by_scores = as_left<T>(d_scores[2 * step], d_scores[2 * step + 1]);
#pragma unroll
      for (int pair = 0; pair < blocks / 2; ++pair) {
        multiply_add<T>(d_v[2 * pair], d_v[2 * pair + 1], by_weights, right_of_columns(d_out, 16 * step, pair));
        multiply_add<T>(d_k[2 * pair], d_k[2 * pair + 1], by_scores, right_of_columns(q, 16 * step, pair));
      }
    }
  };
#pragma unroll 1
  for (int s = -1; s < count; ++s) { // the first time round, stage 0 is prepared
    if (s >= 0) stage.fetch(s + 2);
      // One group prepares the next stage while the other multiplies.
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn)
      if (turn == group)
        stage.settle(s + 1);
      else if (s >= 0)
        add_up(s);
    __syncthreads(); // the next stage is there, and nobody uses this one any more
  }

  // The groups' sums meet: the first one finishes d_k, the other d_v.
  float* const exchange = reinterpret_cast<float*>(memory + keys.bytes);
  const auto met = [&](int side, int b, int i) -> float& {
    return exchange[(((side * key_warps + key_warp) * blocks + b) * 4 + i) * warp + lane_index()];
  };
  const bool of_k = group == 0;
#pragma unroll
  for (int b = 0; b < blocks; ++b)
#pragma unroll
    for (int i = 0; i < 4; ++i) met(group, b, i) = of_k ? d_v[b][i] : d_k[b][i];
  __syncthreads();
#pragma unroll
  for (int b = 0; b < blocks; ++b)
#pragma unroll
    for (int i = 0; i < 4; ++i) d_k[b][i] = (of_k ? d_k[b][i] : d_v[b][i]) + met(1 - group, b, i);
  if (of_k && p.positions_kv) {
    // The positions that the keys were turned by are still there.
    turn_back(d_k, steps,
              {keys.position(key_warp * rows_of_warp + lane_index() / 4),
               keys.position(key_warp * rows_of_warp + lane_index() / 4 + 8)});
  }
  const float factor = of_k ? p.scale : 1;
  store_rows<T>(own, of_k ? p.d_k : p.d_v, of_k ? k : v, d_k, {factor, factor});
}

template <class T>
__device__ void queries_backward(const Problem& p, int slot, int head_kv, char* memory, const std::uint64_t* steps) {
  const Place place = find_place<queries>(p, false, slot);
  const Queries own(p, place, head_kv);
  if (place.padding)
    return zero_rows<T, queries>(p.d_q, p.sharing, own.rows.head, place.tile, place.begin_q, p.tokens_q);
  if (place.tile * queries >= own.rows.count) return;

  Keys<T, chunk> keys(p, place, head_kv, memory, steps);
  const Tile mine = Tile{memory + keys.bytes}.rows_from(warp_index() * 2 * rows_of_warp);
  const Tile mine_d = mine.rows_from(rows_of_warp);
  std::int32_t* const positions =
      reinterpret_cast<std::int32_t*>(memory + keys.bytes + 2 * queries * row_bytes) + warp_index() * rows_of_warp;
  const int end = own.seen_by_block();
  copy_rows<T>(own.rows, p.q, mine);
  copy_rows<T>(own.rows, p.d_out, mine_d);
  copy_positions(own.rows, p.positions_q, positions);
  end_group();
  keys.template fetch<span>(0, min(chunk, end));
  end_group();
  const ThreadRows rows(own);
  float log_sum[2], delta[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    log_sum[h] = p.log_sums[rows.token[h] * p.heads_q + rows.head[h]];
    if (!rows.there[h]) log_sum[h] = INFINITY; // weight 0
  }
  const Outputs<T> outputs(p, own.rows);
  wait_for_copies<1>();
  __syncwarp();
  outputs.deltas(mine_d, delta);
  if (p.positions_q) turn_rows<T>(mine, positions, steps);
  Fragment q[head_dim / 16], d_out[head_dim / 16];
#pragma unroll
  for (int step = 0; step < head_dim / 16; ++step) q[step] = left(mine, 0, step), d_out[step] = left(mine_d, 0, step);

  const float scale = p.scale * log2_e;
  const int seen_by_all = own.seen_by_all();
  float d_q[blocks][4] = {};
  keys.template walk<span>(end, own.seen_by_warp(), [&](int begin, const Tile& k, const Tile& v) {
    float weights[span / 8][4] = {}, d_scores[span / 8][4] = {};
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step)
#pragma unroll
      for (int pair = 0; pair < span / 16; ++pair) {
        multiply_add<T>(weights[2 * pair], weights[2 * pair + 1], q[step], right_of_rows(k, 16 * pair, step));
        multiply_add<T>(d_scores[2 * pair], d_scores[2 * pair + 1], d_out[step], right_of_rows(v, 16 * pair, step));
      }
    const float log_sums[4] = {log_sum[0], log_sum[0], log_sum[1], log_sum[1]};
    const float deltas[4] = {delta[0], delta[0], delta[1], delta[1]};
#pragma unroll
    for (int b = 0; b < span / 8; ++b)
      differentiate(weights[b], d_scores[b], scale, log_sums, deltas, [&](int i) {
        return begin + span <= seen_by_all || begin + 8 * b + column_of(i) < rows.seen[i / 2];
      });
#pragma unroll
    for (int step = 0; step < span / 16; ++step) {
      const Fragment by_scores = as_left<T>(d_scores[2 * step], d_scores[2 * step + 1]);
#pragma unroll
      for (int pair = 0; pair < blocks / 2; ++pair)
        multiply_add<T>(d_q[2 * pair], d_q[2 * pair + 1], by_scores, right_of_columns(k, 16 * step, pair));
    }
  });
  if (p.positions_q) turn_back(d_q, steps, {positions[lane_index() / 4], positions[lane_index() / 4 + 8]});
  store_rows<T>(own.rows, p.d_q, mine, d_q, {p.scale, p.scale});
}

template <class T>
constexpr int shared_bytes = std::max(Keys<T, keys_in_block>::bytes + Stages<T>::bytes,
                                      Keys<T, chunk>::bytes + queries * (2 * row_bytes + 4));

// Blocks of keys, which take longest, begin. A slot's key heads lie side by side. resident: how many blocks a
// multiprocessor is to hold at once.
template <class T, int resident>
__global__ void __launch_bounds__(threads, resident) backward_kernel(const __grid_constant__ Problem p, int key_slots) {
  extern __shared__ __align__(128) char memory[];
  __shared__ std::uint64_t steps[frequencies];
  if (thread_index() < frequencies) steps[thread_index()] = p.steps[thread_index()];
  const int slot = static_cast<int>(blockIdx.x) / p.heads_kv, head_kv = static_cast<int>(blockIdx.x) % p.heads_kv;
  if (slot < key_slots)
    keys_backward<T>(p, slot, head_kv, memory, steps);
  else
    queries_backward<T>(p, slot - key_slots, head_kv, memory, steps);
}

} // namespace

int backward_memory() {
  return shared_bytes<BFloat16> + static_cast<int>(sizeof(Place) + frequencies * sizeof(std::uint64_t));
}

void attention_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& p) {
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    const int key_slots = slots_of(p.tokens_kv, 1, keys_in_block, p.segments);
    const int slots = key_slots + slots_of(p.tokens_q, p.sharing.heads, queries, p.segments);
    // Few blocks are faster with more registers each, many with two on a multiprocessor.
    const bool few = int64_t{slots} * p.heads_kv <= 3 * multiprocessors;
    enqueue(call, few ? backward_kernel<T, 1> : backward_kernel<T, 2>, slots, shared_bytes<T>, p, key_slots);
  });
}

} // namespace fvlm::plugins
