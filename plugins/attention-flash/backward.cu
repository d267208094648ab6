// backward.cu: the general attention backward for devices from compute capability 8.0: any segment lengths, causal or
// not, grouped-query heads, rotation of q and k inside.
//
// One launch has two kinds of blocks of 8 warps. A key block owns 64 keys (four warps of 16, in two groups that
// alternate between preparing and multiplying stages) and iterates over the queries that see them, three cp.async
// stages deep, or two where a block has too little shared memory: d_k and d_v stay in registers. A query block owns 128
// flat rows of queries, iterates over the keys they see, and keeps d_q in registers. Both recompute probabilities from
// logsumexp, so nothing is added across blocks and results are deterministic.
//
// Chosen where no specialized kernel applies. Measured on an H100 (bf16, 9:3 heads, causal, rotation inside;
// bench/LOG.md, 2026-11-22, a version before this one): 32 x 256 tokens 73.9 us a layer, 4 x 2,048 381 us, where cuDNN
// takes 124.3 and 336 us.
#include "softmax_gradient.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

constexpr int step_rows = 32; // rows of the other operand that a warp processes per step
constexpr int keys_in_block = 64, key_warps = keys_in_block / rows_of_warp, key_groups = warps / key_warps;
constexpr int stage_rows = key_groups * step_rows;

// How much of a segment is in shared memory at once: stages of queries of a key block, and keys of a query block.
struct Roomy {
  static constexpr int stages = 3, key_chunk = 256;
};
struct Compact {
  static constexpr int stages = 2, key_chunk = 128;
};

// What the backward needs per query row: logsumexp, and delta = d_out . out.
struct alignas(8) Statistic {
  float row_lse, delta;
};

// The pipeline of flat query rows that a key block iterates over, stage_rows at a time: q, d_out and the row
// statistics. While one stage is computed, the next ones are in flight. Each thread copies a quarter of a row.
template <class T, class Size>
class Stages {
 public:
  static constexpr int stages = Size::stages, ahead = stages - 1;
  static constexpr int tile_bytes = stage_rows * row_bytes, compensation_bytes = stage_rows * head_dim;
  static constexpr int bytes =
      stages * (3 * tile_bytes + compensation_bytes + stage_rows * static_cast<int>(sizeof(Statistic) + 4));

  __device__ Stages(const Problem& p, const WarpRows& rows, char* memory, const std::uint64_t* steps)
      : p_(p), rows_(rows), memory_(memory), steps_(steps) {}

  __device__ Tile q(int stage) const { return tile(stage, 0); }
  __device__ Tile d_out(int stage) const { return tile(stage, 1); }
  __device__ Statistic* statistics(int stage) const {
    return reinterpret_cast<Statistic*>(memory_ + stages * (3 * tile_bytes + compensation_bytes)) +
           stage % stages * stage_rows;
  }

  // Starts copying a stage. Always commits a cp.async group, even past the last stage.
  __device__ void fetch(int stage) {
    if (first(stage) < rows_.count) {
      const int flat = rows_.clamped(first(stage) + copy_row()), token = rows_.token(flat), head = rows_.head_of(flat);
      const T *from_q = at<T>(p_.q, token, head), *from_d = at<T>(p_.d_out, token, head),
              *from_out = at<T>(p_.out, token, head);
#pragma unroll
      for (int index = copy_quarter(), half = 0; half < 2; index += 4, ++half) {
        cp_async_16(q(stage).at(copy_row(), index), from_q + index * pack);
        cp_async_16(d_out(stage).at(copy_row(), index), from_d + index * pack);
        cp_async_16(out(stage).at(copy_row(), index), from_out + index * pack);
      }
      if (p_.out_compensation)
        cp_async_16(compensation(stage, copy_quarter() * 2),
                    p_.out_compensation + (std::int64_t{token} * p_.heads_q + head) * head_dim + copy_quarter() * 16);
      if (copy_quarter() == 0) cp_async_4(&statistics(stage)[copy_row()].row_lse, p_.lse + token * p_.heads_q + head);
      if (copy_quarter() == 1 && p_.positions_q) cp_async_4(positions(stage) + copy_row(), p_.positions_q + token);
    }
    cp_async_commit();
  }
  // Rotates a stage's queries and completes its statistics. Waits for the warp's copies, except those of the stages
  // behind it.
  __device__ void complete(int stage) {
    cp_async_wait<ahead - 1>();
    __syncwarp();
    if (first(stage) >= rows_.count) return;
    if (p_.positions_q) rotate_in_place<T>(q(stage), copy_row(), copy_quarter(), steps_, positions(stage)[copy_row()]);
    const Tile of_d_out = d_out(stage), of_out = out(stage);
    float sum = 0;
#pragma unroll
    for (int index = copy_quarter(), half = 0; half < 2; index += 4, ++half) {
      Pack<T, pack> one, other;
      one.load(of_d_out.at<T>(copy_row(), index));
      other.load(of_out.at<T>(copy_row(), index));
      sum += dot<T>(one, other,
                    p_.out_compensation ? *reinterpret_cast<const uint2*>(compensation(stage, index)) : uint2{});
    }
    sum = quad_sum<8>(sum);
    if (copy_quarter() == 0) statistics(stage)[copy_row()].delta = sum;
    if (copy_quarter() == 0 && first(stage) + copy_row() >= rows_.count)
      statistics(stage)[copy_row()].row_lse = INFINITY; // gives probability 0
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
  // One pack's compensation in the row that this thread copies, swizzled like Tile.
  __device__ char* compensation(int stage, int index) const {
    return memory_ + 3 * stages * tile_bytes + stage % stages * compensation_bytes + copy_row() * head_dim +
           (index ^ (copy_row() & 6)) * 8;
  }
  __device__ std::int32_t* positions(int stage) const {
    return reinterpret_cast<std::int32_t*>(statistics(0) + stages * stage_rows) + stage % stages * stage_rows;
  }

  const Problem& p_;
  const WarpRows& rows_;
  char* memory_;
  const std::uint64_t* steps_;
};

// Four warps share a tile of keys, 16 each; two such groups share the stages of queries.
template <class T, class Size>
__device__ void keys_backward(const Problem& p, int slot, int head_kv, char* memory, const std::uint64_t* steps) {
  const BlockTile block_tile = find_block_tile<keys_in_block>(p, true, slot);
  if (block_tile.padding) {
    zero_rows<T, keys_in_block>(p.d_k, {}, head_kv, block_tile.tile, block_tile.begin_kv, p.tokens_kv);
    zero_rows<T, keys_in_block>(p.d_v, {}, head_kv, block_tile.tile, block_tile.begin_kv, p.tokens_kv);
    return;
  }
  const int first_key = block_tile.tile * keys_in_block;
  if (first_key >= block_tile.rows_kv) return;

  const int key_warp = warp_index() % key_warps, group = warp_index() / key_warps;
  const int head_group = p.head_group.heads, offset = block_tile.rows_kv - block_tile.rows_q;
  // The first flat query row that sees a key.
  const auto first_query_seeing = [&](int key) { return p.causal ? max(key - offset, 0) * head_group : 0; };
  const WarpRows queried{p.head_group, block_tile.begin_q, first_query_seeing(first_key),
                         block_tile.rows_q * head_group, head_kv * head_group};
  const WarpRows own{{}, block_tile.begin_kv, first_key + key_warp * rows_of_warp, block_tile.rows_kv, head_kv};
  const int mine[2] = {own.first + lane_index() / 4, own.first + lane_index() / 4 + 8};
  const int first_query_of_thread[2] = {first_query_seeing(mine[0]), first_query_seeing(mine[1])};
  const int first_query_of_warp = first_query_seeing(own.first),
            first_query_of_all = first_query_seeing(own.first + rows_of_warp - 1);

  Keys<T, keys_in_block> keys(p, block_tile, head_kv, memory, steps);
  Stages<T, Size> stage(p, queried, memory + keys.bytes, steps);
  const int count = stage.count();
  keys.template fetch<keys_in_block>(first_key, first_key + keys_in_block);
#pragma unroll
  for (int s = 0; s < stage.ahead; ++s) stage.fetch(s);
  cp_async_wait<stage.ahead - 1>();
  __syncwarp();
  keys.rotate(first_key, first_key + keys_in_block);

  const Tile k = keys.k().rows_from(key_warp * rows_of_warp), v = keys.v().rows_from(key_warp * rows_of_warp);
  const float scale = p.scale * log2_e;
  float d_k[blocks][4] = {}, d_v[blocks][4] = {};
  const auto add_up = [&](int s) {
    const int first = stage.first(s) + group * step_rows;
    if (own.first >= own.count || first >= queried.count || first + step_rows <= first_query_of_warp) return;
    const Tile q = stage.q(s).rows_from(group * step_rows), d_out = stage.d_out(s).rows_from(group * step_rows);
    const Statistic* statistics = stage.statistics(s) + group * step_rows;
    float weights[step_rows / 8][4] = {}, d_scores[step_rows / 8][4] = {}; // keys by queries
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step) {
      const Fragment k_rows = load_a(k, 0, step), v_rows = load_a(v, 0, step);
#pragma unroll
      for (int pair = 0; pair < step_rows / 16; ++pair) {
        mma_16x8x16<T>(weights[2 * pair], weights[2 * pair + 1], k_rows, load_b(q, 16 * pair, step));
        mma_16x8x16<T>(d_scores[2 * pair], d_scores[2 * pair + 1], v_rows, load_b(d_out, 16 * pair, step));
      }
    }
#pragma unroll
    for (int b = 0; b < step_rows / 8; ++b) {
      const float4 two = *reinterpret_cast<const float4*>(statistics + 8 * b + column_of(0));
      const float row_lse[4] = {two.x, two.z, two.x, two.z}, delta[4] = {two.y, two.w, two.y, two.w};
      softmax_gradient(weights[b], d_scores[b], scale, row_lse, delta, [&](int i) {
        return first >= first_query_of_all || first + 8 * b + column_of(i) >= first_query_of_thread[i / 2];
      });
    }
#pragma unroll
    for (int step = 0; step < step_rows / 16; ++step) {
      const Fragment by_weights = to_a_fragment<T>(weights[2 * step], weights[2 * step + 1]);
      const Fragment by_scores = to_a_fragment<T>(d_scores[2 * step], d_scores[2 * step + 1]);
#pragma unroll
      for (int pair = 0; pair < blocks / 2; ++pair) {
        mma_16x8x16<T>(d_v[2 * pair], d_v[2 * pair + 1], by_weights, load_b_transposed(d_out, 16 * step, pair));
        mma_16x8x16<T>(d_k[2 * pair], d_k[2 * pair + 1], by_scores, load_b_transposed(q, 16 * step, pair));
      }
    }
  };
#pragma unroll 1
  for (int s = -1; s < count; ++s) { // the first iteration only prepares stage 0
    if (s >= 0) stage.fetch(s + stage.ahead);
      // One group prepares the next stage while the other multiplies.
#pragma unroll 1
    for (int phase = 0; phase < 2; ++phase)
      if (phase == group)
        stage.complete(s + 1);
      else if (s >= 0)
        add_up(s);
    __syncthreads(); // the next stage is ready, and this one is no longer used
  }

  // Exchanges the groups' sums: the first group finishes d_k, the other d_v.
  float* const exchange = reinterpret_cast<float*>(memory + keys.bytes);
  const auto exchanged = [&](int side, int b, int i) -> float& {
    return exchange[(((side * key_warps + key_warp) * blocks + b) * 4 + i) * warp_size + lane_index()];
  };
  const bool of_k = group == 0;
#pragma unroll
  for (int b = 0; b < blocks; ++b)
#pragma unroll
    for (int i = 0; i < 4; ++i) exchanged(group, b, i) = of_k ? d_v[b][i] : d_k[b][i];
  __syncthreads();
#pragma unroll
  for (int b = 0; b < blocks; ++b)
#pragma unroll
    for (int i = 0; i < 4; ++i) d_k[b][i] = (of_k ? d_k[b][i] : d_v[b][i]) + exchanged(1 - group, b, i);
  if (of_k && p.positions_kv) {
    // The key positions are still in shared memory.
    rotate_back(d_k, steps,
                {keys.position(key_warp * rows_of_warp + lane_index() / 4),
                 keys.position(key_warp * rows_of_warp + lane_index() / 4 + 8)});
  }
  const float factor = of_k ? p.scale : 1;
  store_rows<T>(own, of_k ? p.d_k : p.d_v, of_k ? k : v, d_k, {factor, factor});
}

template <class T, class Size>
__device__ void queries_backward(const Problem& p, int slot, int head_kv, char* memory, const std::uint64_t* steps) {
  const BlockTile block_tile = find_block_tile<queries>(p, false, slot);
  const WarpQueries own(p, block_tile, head_kv);
  if (block_tile.padding)
    return zero_rows<T, queries>(p.d_q, p.head_group, own.rows.head, block_tile.tile, block_tile.begin_q, p.tokens_q);
  if (block_tile.tile * queries >= own.rows.count) return;

  Keys<T, Size::key_chunk> keys(p, block_tile, head_kv, memory, steps);
  const Tile mine = Tile{memory + keys.bytes}.rows_from(warp_index() * 2 * rows_of_warp);
  const Tile mine_d = mine.rows_from(rows_of_warp);
  std::int32_t* const positions =
      reinterpret_cast<std::int32_t*>(memory + keys.bytes + 2 * queries * row_bytes) + warp_index() * rows_of_warp;
  const int end = own.keys_visible_to_block();
  copy_rows<T>(own.rows, p.q, mine);
  copy_rows<T>(own.rows, p.d_out, mine_d);
  copy_positions(own.rows, p.positions_q, positions);
  cp_async_commit();
  keys.template fetch<step_rows>(0, min(Size::key_chunk, end));
  cp_async_commit();
  const ThreadRows rows(own);
  float row_lse[2], delta[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    row_lse[h] = p.lse[rows.token[h] * p.heads_q + rows.head[h]];
    if (!rows.exists[h]) row_lse[h] = INFINITY; // gives probability 0
  }
  const Outputs<T> outputs(p, own.rows);
  cp_async_wait<1>();
  __syncwarp();
  outputs.deltas(mine_d, delta);
  if (p.positions_q) rotate_rows<T>(mine, positions, steps);
  Fragment q[head_dim / 16], d_out[head_dim / 16];
#pragma unroll
  for (int step = 0; step < head_dim / 16; ++step)
    q[step] = load_a(mine, 0, step), d_out[step] = load_a(mine_d, 0, step);

  const float scale = p.scale * log2_e;
  const int keys_visible_to_all = own.keys_visible_to_all();
  float d_q[blocks][4] = {};
  keys.template for_each_step<step_rows>(end, own.keys_visible_to_warp(), [&](int begin, const Tile& k, const Tile& v) {
    float weights[step_rows / 8][4] = {}, d_scores[step_rows / 8][4] = {};
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step)
#pragma unroll
      for (int pair = 0; pair < step_rows / 16; ++pair) {
        mma_16x8x16<T>(weights[2 * pair], weights[2 * pair + 1], q[step], load_b(k, 16 * pair, step));
        mma_16x8x16<T>(d_scores[2 * pair], d_scores[2 * pair + 1], d_out[step], load_b(v, 16 * pair, step));
      }
    const float lse[4] = {row_lse[0], row_lse[0], row_lse[1], row_lse[1]};
    const float deltas[4] = {delta[0], delta[0], delta[1], delta[1]};
#pragma unroll
    for (int b = 0; b < step_rows / 8; ++b)
      softmax_gradient(weights[b], d_scores[b], scale, lse, deltas, [&](int i) {
        return begin + step_rows <= keys_visible_to_all || begin + 8 * b + column_of(i) < rows.visible_keys[i / 2];
      });
#pragma unroll
    for (int step = 0; step < step_rows / 16; ++step) {
      const Fragment by_scores = to_a_fragment<T>(d_scores[2 * step], d_scores[2 * step + 1]);
#pragma unroll
      for (int pair = 0; pair < blocks / 2; ++pair)
        mma_16x8x16<T>(d_q[2 * pair], d_q[2 * pair + 1], by_scores, load_b_transposed(k, 16 * step, pair));
    }
  });
  if (p.positions_q) rotate_back(d_q, steps, {positions[lane_index() / 4], positions[lane_index() / 4 + 8]});
  store_rows<T>(own.rows, p.d_q, mine, d_q, {p.scale, p.scale});
}

template <class T, class Size>
constexpr int shared_bytes = std::max(Keys<T, keys_in_block>::bytes + Stages<T, Size>::bytes,
                                      Keys<T, Size::key_chunk>::bytes + queries * (2 * row_bytes + 4));

// Key blocks come first, as they take longest. The key heads of a slot are consecutive blocks. `resident`: blocks per
// multiprocessor that the register budget allows.
template <class T, class Size, int resident>
__global__ void __launch_bounds__(threads, resident) backward_kernel(const __grid_constant__ Problem p, int key_slots) {
  extern __shared__ __align__(128) char memory[];
  __shared__ std::uint64_t steps[frequencies];
  if (thread_index() < frequencies) steps[thread_index()] = p.steps[thread_index()];
  const int slot = static_cast<int>(blockIdx.x) / p.heads_kv, head_kv = static_cast<int>(blockIdx.x) % p.heads_kv;
  if (slot < key_slots)
    keys_backward<T, Size>(p, slot, head_kv, memory, steps);
  else
    queries_backward<T, Size>(p, slot - key_slots, head_kv, memory, steps);
}

} // namespace

void attention_backward(const fvlm_call& call, const BackwardDevice& device, fvlm_dtype dtype, const Problem& p) {
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    const int key_slots = tile_slots(p.tokens_kv, 1, keys_in_block, p.segments);
    const int slots = key_slots + tile_slots(p.tokens_q, p.head_group.heads, queries, p.segments);
    // Few blocks run faster with more registers each, many with two per multiprocessor.
    const bool few = int64_t{slots} * p.heads_kv <= 3 * device.multiprocessors;
    const auto enqueue_sized = [&](auto size) {
      using Size = decltype(size);
      enqueue(call, few ? backward_kernel<T, Size, 1> : backward_kernel<T, Size, 2>, slots, shared_bytes<T, Size>, p,
              key_slots);
    };
    constexpr int own =
        static_cast<int>(sizeof(BlockTile) + frequencies * sizeof(std::uint64_t)); // declared in the kernel
    shared_bytes<T, Roomy> + own <= device.shared_memory ? enqueue_sized(Roomy{}) : enqueue_sized(Compact{});
  });
}

} // namespace fvlm::plugins
