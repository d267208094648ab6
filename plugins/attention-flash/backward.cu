// backward.cu: one launch of two sorts of blocks. Those of keys have a tile of them, and go through the queries that
// see it: d_k and d_v stay in registers. Those of queries have a tile of them, and go through the keys they see: so
// does d_q. Each computes the weights anew, from their logarithms' sums; nothing is added up by two blocks.
#include "rows.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

constexpr int key_warps = keys / rows_of_warp, row_groups = warps / key_warps; // in a block of keys
constexpr int group_rows = 32, stage_rows = row_groups * group_rows;

// The dot product of two packs, in float.
template <class T>
__device__ float dot(const Pack<T, pack>& one, const Pack<T, pack>& other) {
  float a[pack], b[pack], sum = 0;
  one.widen(a);
  other.widen(b);
#pragma unroll
  for (int i = 0; i < pack; ++i) sum += a[i] * b[i];
  return sum;
}

// What a query's row of weights comes from: the logarithm of their sum, and d_out . out.
struct alignas(8) Statistic {
  float log_sum, delta;
};

// Weights, and from the gradients of weights those of scaled scores. Where `visible(i)` is false the weight is 0.
template <class Visible>
__device__ void differentiate(float (&scores)[4], float (&d_weights)[4], float scale, const float (&log_sum)[4],
                              const float (&delta)[4], const Visible& visible) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scores[i] = visible(i) ? power_of_2(scores[i] * scale - log_sum[i]) : 0;
    d_weights[i] = scores[i] * (d_weights[i] - delta[i]);
  }
}

// Tiles of queries as a block of keys goes through them, stage_rows flat rows at a time, two kept: q and d_out beside
// each row's statistic. A quarter of a row a thread.
template <class T>
class Stages {
 public:
  static constexpr int tile_bytes = stage_rows * row_bytes;
  static constexpr int bytes = 2 * (3 * tile_bytes + stage_rows * static_cast<int>(sizeof(Statistic)));

  __device__ Stages(const Problem& p, const WarpRows& rows, char* memory, const std::uint64_t* steps)
      : p_(p), rows_(rows), memory_(memory), steps_(steps) {}

  __device__ Tile q(int stage) const { return {memory_ + (stage % 2 * 3 + 0) * tile_bytes}; }
  __device__ Tile d_out(int stage) const { return {memory_ + (stage % 2 * 3 + 1) * tile_bytes}; }
  __device__ Statistic* statistics(int stage) const {
    return reinterpret_cast<Statistic*>(memory_ + 6 * tile_bytes) + stage % 2 * stage_rows;
  }

  __device__ void fetch(int stage, int first) {
    const int flat = first + row();
    there_ = flat < rows_.count;
    log_sum_ = INFINITY; // weights of 0
    if (there_) {
      const int64_t token = rows_.token(flat);
      const int head = rows_.head_of(flat);
      log_sum_ = p_.log_sums[token * p_.heads_q + head];
      if (p_.positions_q) position_ = p_.positions_q[token];
    }
    copy(q(stage), p_.q, flat);
    copy(d_out(stage), p_.d_out, flat);
    copy(out(stage), p_.out, flat);
  }
  __device__ void settle(int stage) {
    wait_for_copies(); // of the thread's own
    Halves<T> halves, other;
    if (there_ && p_.positions_q) {
      halves.read(q(stage), row(), part());
      halves.turn(steps_, part(), position_);
      halves.store(q(stage), row(), part());
    }
    halves.read(d_out(stage), row(), part());
    other.read(out(stage), row(), part());
    const float delta = sum_of_four(dot<T>(halves.low, other.low) + dot<T>(halves.high, other.high));
    if (part() == 0) statistics(stage)[row()] = {log_sum_, delta};
  }

 private:
  __device__ static int row() { return thread_index() / 4; }
  __device__ static int part() { return thread_index() % 4; }
  __device__ Tile out(int stage) const { return {memory_ + (stage % 2 * 3 + 2) * tile_bytes}; }
  __device__ void copy(const Tile& tile, const HeadRows& rows, int flat) const {
    const T* from = there_ ? rows_.at<T>(rows, flat) : static_cast<const T*>(rows.data);
#pragma unroll
    for (int i = part(); i < packs; i += 4) copy_pack(tile.at(row(), i), from + i * pack, there_);
  }

  const Problem& p_;
  const WarpRows& rows_;
  char* memory_;
  const std::uint64_t* steps_;
  float log_sum_ = 0;
  std::int32_t position_ = 0;
  bool there_ = false;
};

// Four warps share a tile of keys, 16 each; two such groups of warps take turns with the queries.
template <class T>
__device__ void keys_backward(const Problem& p, int slot, int head_kv, char* memory, const std::uint64_t* steps) {
  const Place place = find_place<keys>(p, p.cu_kv, 1, slot);
  if (place.padding) {
    zero_rows<T, keys>(p.d_k, {}, head_kv, place.tile, place.begin_kv, p.tokens_kv);
    zero_rows<T, keys>(p.d_v, {}, head_kv, place.tile, place.begin_kv, p.tokens_kv);
    return;
  }
  const int first_key = place.tile * keys;
  if (first_key >= place.rows_kv) return;

  using KeyTile = Keys<T, 1>;
  const int key_warp = thread_index() / warp % key_warps, group = thread_index() / warp / key_warps;
  const int sharing = p.sharing.heads, offset = place.rows_kv - place.rows_q;
  // The first flat row that sees a key.
  const auto needed = [&](int key) { return p.causal ? max(key - offset, 0) * sharing : 0; };
  const WarpRows queried{p.sharing, place.begin_q, 0, place.rows_q * sharing, head_kv * sharing};
  const WarpRows own{{}, place.begin_kv, first_key + key_warp * rows_of_warp, place.rows_kv, head_kv};
  const int mine[2] = {own.first + lane_index() / 4, own.first + lane_index() / 4 + 8};
  const int needed_by_mine[2] = {needed(mine[0]), needed(mine[1])};
  const int needed_by_warp = needed(own.first), needed_by_all = needed(own.first + rows_of_warp - 1);

  KeyTile fetched(p, place, head_kv, memory, steps);
  Stages<T> stages(p, queried, memory + KeyTile::bytes, steps);
  const int begin = needed(first_key), count = (max(queried.count - begin, 0) + stage_rows - 1) / stage_rows;
  fetched.fetch(place.tile);
  if (count > 0) stages.fetch(0, begin);
  fetched.settle(place.tile);
  if (count > 0)
    stages.settle(0);
  else
    wait_for_copies();
  __syncthreads();

  const Tile k = fetched.k(0).rows_from(key_warp * rows_of_warp), v = fetched.v(0).rows_from(key_warp * rows_of_warp);
  const float scale = p.scale * log2_e;
  float d_k[blocks][4] = {}, d_v[blocks][4] = {};
  for (int stage = 0; stage < count; ++stage) {
    if (stage + 1 < count) stages.fetch(stage + 1, begin + (stage + 1) * stage_rows);
    const int first = begin + stage * stage_rows + group * group_rows;
    if (own.first < own.count && first < queried.count && first + group_rows > needed_by_warp) {
      const Tile q = stages.q(stage).rows_from(group * group_rows),
                 d_out = stages.d_out(stage).rows_from(group * group_rows);
      const Statistic* statistics = stages.statistics(stage) + group * group_rows;
      float weights[group_rows / 8][4] = {}, d_scores[group_rows / 8][4] = {}; // keys by queries
#pragma unroll
      for (int step = 0; step < head_dim / 16; ++step) {
        const Fragment k_rows = left(k, 0, step), v_rows = left(v, 0, step);
#pragma unroll
        for (int pair = 0; pair < group_rows / 16; ++pair) {
          multiply_add<T>(weights[2 * pair], weights[2 * pair + 1], k_rows, right_of_rows(q, 16 * pair, step));
          multiply_add<T>(d_scores[2 * pair], d_scores[2 * pair + 1], v_rows, right_of_rows(d_out, 16 * pair, step));
        }
      }
#pragma unroll
      for (int b = 0; b < group_rows / 8; ++b) {
        const float4 two = *reinterpret_cast<const float4*>(statistics + 8 * b + column_of(0));
        const float log_sum[4] = {two.x, two.z, two.x, two.z}, delta[4] = {two.y, two.w, two.y, two.w};
        differentiate(weights[b], d_scores[b], scale, log_sum, delta, [&](int i) {
          return first >= needed_by_all || first + 8 * b + column_of(i) >= needed_by_mine[i / 2];
        });
      }
#pragma unroll
      for (int step = 0; step < group_rows / 16; ++step) {
        const Fragment by_weights = as_left<T>(weights[2 * step], weights[2 * step + 1]);
        const Fragment by_scores = as_left<T>(d_scores[2 * step], d_scores[2 * step + 1]);
#pragma unroll
        for (int pair = 0; pair < blocks / 2; ++pair) {
          multiply_add<T>(d_v[2 * pair], d_v[2 * pair + 1], by_weights, right_of_columns(d_out, 16 * step, pair));
          multiply_add<T>(d_k[2 * pair], d_k[2 * pair + 1], by_scores, right_of_columns(q, 16 * step, pair));
        }
      }
    }
    if (stage + 1 < count) stages.settle(stage + 1);
    __syncthreads();
  }

  // The groups' sums meet: the first one finishes d_k, the other d_v.
  float* const exchange = reinterpret_cast<float*>(memory + KeyTile::bytes);
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
    int positions[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (mine[h] < own.count) positions[h] = p.positions_kv[own.token(mine[h])];
    turn_back(d_k, steps, positions);
  }
  const float factor = of_k ? p.scale : 1;
  store_rows<T>(own, of_k ? p.d_k : p.d_v, of_k ? k : v, d_k, {factor, factor});
}

template <class T>
__device__ void queries_backward(const Problem& p, int slot, int head_kv, char* memory, const std::uint64_t* steps) {
  const Place place = find_place<queries>(p, p.cu_q, p.sharing.heads, slot);
  const Queries own(p, place, head_kv);
  if (place.padding)
    return zero_rows<T, queries>(p.d_q, p.sharing, own.rows.head, place.tile, place.begin_q, p.tokens_q);
  if (place.tile * queries >= own.rows.count) return;

  using KeyTiles = Keys<T, 2>;
  constexpr int half = keys / 2;
  const Tile mine = Tile{memory + KeyTiles::bytes}.rows_from(thread_index() / warp * 2 * rows_of_warp);
  const Tile mine_d = mine.rows_from(rows_of_warp);
  KeyTiles fetched(p, place, head_kv, memory, steps);
  const int tiles = (own.seen_by_block() + keys - 1) / keys;
  copy_rows<T>(own.rows, p.q, mine);
  copy_rows<T>(own.rows, p.d_out, mine_d);
  if (tiles > 0) fetched.fetch(0);
  const ThreadRows rows(own, p.positions_q);
  float log_sum[2], delta[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h)
    log_sum[h] = rows.there[h] ? p.log_sums[own.rows.token(rows.flat[h]) * p.heads_q + own.rows.head_of(rows.flat[h])]
                               : INFINITY;
  wait_for_copies();
  __syncwarp();
  // Eight threads read a row of `out`; its sum goes to those that have it in their products.
  each_pack(own.rows, [&](int row, int index, bool there) {
    float sum = 0;
    if (there) {
      Pack<T, pack> one, other;
      one.load(own.rows.at<T>(p.out, own.rows.first + row) + index * pack);
      other.load(mine_d.at<T>(row, index));
      sum = dot<T>(one, other);
    }
    sum = sum_of_four(sum);
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    // Rows 4 n to 4 n + 3 are summed now, n = row / 4; those of threads t are t / 4 and t / 4 + 8.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int wanted = lane_index() / 4 + 8 * h;
      const float found = __shfl_sync(0xffffffffu, sum, wanted % 4 * packs);
      if (wanted / 4 == row / 4) delta[h] = found;
    }
  });
  Fragment q[head_dim / 16], d_out[head_dim / 16];
#pragma unroll
  for (int step = 0; step < head_dim / 16; ++step) q[step] = left(mine, 0, step), d_out[step] = left(mine_d, 0, step);
  if (p.positions_q) turn_fragments<T>(q, steps, rows.position);
  if (tiles > 0) fetched.settle(0);

  const float scale = p.scale * log2_e;
  const int seen = own.seen_by_warp(), seen_by_all = own.seen_by_all();
  float d_q[blocks][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    wait_for_copies();
    __syncthreads(); // this tile is there, and nobody uses the one before any more
    if (tile + 1 < tiles) fetched.fetch(tile + 1);
#pragma unroll 1
    for (int begin = tile * keys; begin < min((tile + 1) * keys, seen); begin += half) {
      const Tile k = fetched.k(tile).rows_from(begin % keys), v = fetched.v(tile).rows_from(begin % keys);
      float weights[half / 8][4] = {}, d_scores[half / 8][4] = {};
#pragma unroll
      for (int step = 0; step < head_dim / 16; ++step)
#pragma unroll
        for (int pair = 0; pair < half / 16; ++pair) {
          multiply_add<T>(weights[2 * pair], weights[2 * pair + 1], q[step], right_of_rows(k, 16 * pair, step));
          multiply_add<T>(d_scores[2 * pair], d_scores[2 * pair + 1], d_out[step], right_of_rows(v, 16 * pair, step));
        }
      const float log_sums[4] = {log_sum[0], log_sum[0], log_sum[1], log_sum[1]};
      const float deltas[4] = {delta[0], delta[0], delta[1], delta[1]};
#pragma unroll
      for (int b = 0; b < half / 8; ++b)
        differentiate(weights[b], d_scores[b], scale, log_sums, deltas, [&](int i) {
          return begin + half <= seen_by_all || begin + 8 * b + column_of(i) < rows.seen[i / 2];
        });
#pragma unroll
      for (int step = 0; step < half / 16; ++step) {
        const Fragment by_scores = as_left<T>(d_scores[2 * step], d_scores[2 * step + 1]);
#pragma unroll
        for (int pair = 0; pair < blocks / 2; ++pair)
          multiply_add<T>(d_q[2 * pair], d_q[2 * pair + 1], by_scores, right_of_columns(k, 16 * step, pair));
      }
    }
    if (tile + 1 < tiles) fetched.settle(tile + 1);
  }
  if (p.positions_q) turn_back(d_q, steps, rows.position);
  store_rows<T>(own.rows, p.d_q, mine, d_q, {p.scale, p.scale});
}

template <class T>
constexpr int shared_bytes = std::max(Keys<T, 1>::bytes + Stages<T>::bytes,
                                      Keys<T, 2>::bytes + 2 * queries * row_bytes);

template <class T>
__global__ void __launch_bounds__(threads, 2) backward_kernel(const __grid_constant__ Problem p, int key_slots) {
  extern __shared__ __align__(128) char memory[];
  __shared__ std::uint64_t steps[frequencies];
  const int slot = static_cast<int>(blockIdx.x), head_kv = static_cast<int>(blockIdx.y);
  if (thread_index() < frequencies) steps[thread_index()] = p.steps[thread_index()];
  if (slot < key_slots)
    keys_backward<T>(p, slot, head_kv, memory, steps);
  else
    queries_backward<T>(p, slot - key_slots, head_kv, memory, steps);
}

} // namespace

void attention_backward(const fvlm_call& call, fvlm_dtype dtype, const Problem& p) {
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    const unsigned key_slots = slots_of(p.tokens_kv, 1, keys, p.segments);
    const unsigned query_slots = slots_of(p.tokens_q, p.sharing.heads, queries, p.segments);
    enqueue(call, backward_kernel<T>, key_slots + query_slots, shared_bytes<T>, p, static_cast<int>(key_slots));
  });
}

} // namespace fvlm::plugins
