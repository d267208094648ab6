// persistent_backward.cu: a block goes through heads of segments, all rows of one at a time in its shared memory. Two
// groups of four warps take tiles of 64 keys in turn, whose d_k and d_v stay in registers, and then tiles of 64
// queries, whose d_q does: each computes the weights anew, from their logarithms' sums, so that the groups have nothing
// to tell each other. One more warp fetches what comes next, three others complete it.
#include "persistent.cuh"
#include "warp_rows.cuh"

#include <algorithm>
#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace hopper;

constexpr int tile = 64, full_tiles = max_persistent_rows / tile, tiles = full_tiles + 1; // the last one has fewer rows
constexpr int full_tile_rows = full_tiles * tile, tail_rows = max_persistent_rows - full_tile_rows;
constexpr int consumer_warpgroups = 2, consumer_warps = consumer_warpgroups * warpgroup_warps,
              block_threads = (consumer_warpgroups + 1) * warpgroup_threads;
constexpr int helpers = 3;

static_assert(tail_rows == rows_of_warp);

struct PersistentProblem {
  Problem call;
  HeadTensorMaps q, k, v, d_out;
};

// Rows are there when the copy engine has brought them, ready when those behind the segment's last are zeros and the
// queries' statistics are complete. Queries make room for the next head's tile by tile.
struct alignas(1024) Shared {
  char k[2][rows_bytes], v[2][rows_bytes];
  char q[rows_bytes], d_out[rows_bytes];
  char results[consumer_warps][rows_of_warp * row_bytes];
  float lse[max_persistent_rows], deltas[max_persistent_rows]; // infinite and 0 behind the last query: weight 0
  float3 deferred_partials[2][helpers];                        // see Guest; those of a unit and the next
  WorkUnit units[2];
  Barrier keys_full[2], keys_ready[2], keys_empty[2];
  Barrier queries_full[tiles], queries_ready[tiles], queries_empty[tiles];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // no other architecture's compiler understands it

constexpr int consumer_registers = 208, helper_registers = 88;
constexpr int tile_bytes = tile * row_bytes;
constexpr int deferred_row = max_rows_with_deferred; // where a guest is in shared memory
constexpr int helper_threads = helpers * warp_size;
constexpr int consumer_and_helper_threads = consumer_warps * warp_size + helper_threads; // threads, of what was fetched

// The block's how-manieth unit it is.
struct PipelineState {
  unsigned count = 0;

  __device__ unsigned stage() const { return count % 2; }
  __device__ unsigned keys_parity() const { return count / 2 % 2; } // parities
  __device__ unsigned queries_parity() const { return count % 2; }
};

struct HasQueriesAndKeys {
  __device__ bool operator()(const WorkUnit& unit) const {
    return unit.rows_kv > 0 && (unit.rows_q > 0 || unit.deferred >= 0);
  }
};

// How many of `rows` are in a tile.
__device__ int rows_in(int rows, int tile_index) {
  return min(max(rows - tile_index * tile, 0), tile);
}
__device__ int tiles_of(int rows) {
  return (rows + tile - 1) / tile;
}
__device__ int full_tiles_of(int rows) {
  return min(tiles_of(rows), full_tiles);
}

// By all threads that have written what the barrier is for, or need it no more.
__device__ void arrive(Barrier& barrier) {
  fence_proxy_async();
  barrier.arrive();
}

__device__ void run_producer(Shared& s, const PersistentProblem& p) {
  WorkUnits units(p.call, HasQueriesAndKeys{});
  for (PipelineState state;; ++state.count) {
    const WorkUnit unit = units.next();
    if (lane_index() == 0) {
      const unsigned stage = state.stage();
      s.keys_empty[stage].wait(state.keys_parity() ^ 1);
      s.units[stage] = unit;
      Barrier& keys = s.keys_full[stage];
      keys.arrive_and_expect_tx(static_cast<unsigned>(2 * loaded_rows(unit.rows_kv) * row_bytes));
      tma_load_rows(s.k[stage], p.k, unit.head, unit.begin_kv, unit.rows_kv, keys);
      tma_load_rows(s.v[stage], p.v, unit.head, unit.begin_kv, unit.rows_kv, keys);
#pragma unroll 1
      for (int t = 0; unit.exists() && t < tiles; ++t) {
        const int rows = rows_in(unit.rows_q, t), begin = unit.begin_q + t * tile;
        Barrier& queries = s.queries_full[t];
        s.queries_empty[t].wait(state.queries_parity() ^ 1);
        queries.arrive_and_expect_tx(static_cast<unsigned>(2 * loaded_rows(rows) * row_bytes));
        tma_load_rows(s.q + t * tile_bytes, p.q, unit.head, begin, rows, queries);
        tma_load_rows(s.d_out + t * tile_bytes, p.d_out, unit.head, begin, rows, queries);
      }
    }
    __syncwarp();
    if (!unit.exists()) return;
  }
}

// Zeros rows of a tile, behind the last of a segment's.
template <class T>
__device__ void zero_tile_rows(char* memory, int rows, int end) {
  const Tile of{memory};
  const Pack<T, pack> zero{};
  for (int i = rows * packs + lane_index(); i < end * packs; i += warp_size) zero.store(of.at<T>(i / packs, i % packs));
}

// A helper's share of a tile of queries: each time four rows, eight threads a row.
template <class T>
class HelperRows {
 public:
  // Begins to read what the statistics come from.
  __device__ void load(const Problem& p, const WorkUnit& unit, int t, int helper) {
    const int begin = unit.begin_q + t * tile, rows = rows_in(unit.rows_q, t);
#pragma unroll
    for (int n = 0; n < times; ++n)
      if (const int row = row_of(helper, n); row < rows)
        out_[n].load(at<T>(p.out, begin + row, unit.head) + index() * pack);
    if (const int row = row_of_thread(helper); row < rows) log_sum_ = p.lse[(begin + row) * p.heads_q + unit.head];
  }
  // Completes the tile.
  __device__ void finish(Shared& s, const WorkUnit& unit, int t, int helper) const {
    const int rows = rows_in(unit.rows_q, t), size = t < full_tiles ? tile : tail_rows;
    const Tile q{s.q + t * tile_bytes}, d_out{s.d_out + t * tile_bytes};
#pragma unroll
    for (int n = 0; n < times; ++n) {
      const int row = row_of(helper, n);
      float sum = 0;
      if (row < rows) {
        Pack<T, pack> gradient;
        gradient.load(d_out.at<T>(row, index()));
        sum = dot<T>(out_[n], gradient);
      } else if (row < size) {
        const Pack<T, pack> zero{};
        zero.store(q.at<T>(row, index()));
        zero.store(d_out.at<T>(row, index()));
      }
      sum = quad_sum(sum);
      sum += __shfl_xor_sync(0xffffffffu, sum, 4);
      if (index() == 0 && row < size) s.deltas[t * tile + row] = sum;
    }
    if (const int row = row_of_thread(helper); lane_index() < times * rows_in_flight && row < size)
      s.lse[t * tile + row] = row < rows ? log_sum_ : INFINITY;
  }

 private:
  static constexpr int rows_in_flight = warp_size / packs, times = (tile / rows_in_flight + helpers - 1) / helpers;

  __device__ static int row_of(int helper, int n) {
    return (n * helpers + helper) * rows_in_flight + lane_index() / packs;
  }
  // Each row has one thread whose it is.
  __device__ static int row_of_thread(int helper) {
    return (lane_index() / rows_in_flight * helpers + helper) * rows_in_flight + lane_index() % rows_in_flight;
  }
  __device__ static int index() {
    return lane_index() % packs;
  }

  Pack<T, pack> out_[times];
  float log_sum_;
};

// A query of another call, whose statistics are not known. Each helper has every third 32 keys.
template <class T>
class DeferredQuery {
 public:
  // Begins to read it: a thread has a pack of q or of d_out.
  __device__ void load(const Problem& p, const WorkUnit& unit) {
    if (lane_index() < 2 * packs)
      own_.load(at<T>(lane_index() < packs ? p.deferred_q : p.deferred_d_out, unit.deferred, unit.head) +
                lane_index() % packs * pack);
  }
  // Its statistics, of the keys and values.
  __device__ void compute_statistics(Shared& s, const Problem& p, const WorkUnit& unit, const PipelineState& state,
                                     int helper) {
    const Tile k{s.k[state.stage()]}, v{s.v[state.stage()]};
    float scores[times] = {}, d_weights[times] = {};
#pragma unroll 1
    for (int i = 0; i < packs; ++i) {
      float q[pack], d_out[pack];
      of_thread(i).widen(q);
      of_thread(packs + i).widen(d_out);
#pragma unroll
      for (int n = 0; n < times; ++n) {
        const int key = min(key_of(n, helper), unit.rows_kv - 1);
        add(scores[n], q, k.at<T>(key, i));
        add(d_weights[n], d_out, v.at<T>(key, i));
      }
    }
    float row_max = -INFINITY;
#pragma unroll
    for (int n = 0; n < times; ++n) {
      scores[n] = key_of(n, helper) < unit.rows_kv ? scores[n] * p.scale * log2_e : -INFINITY;
      row_max = fmaxf(row_max, scores[n]);
    }
    for (int apart = warp_size / 2; apart > 0; apart /= 2)
      row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, apart));
    float total = 0, delta = 0;
#pragma unroll
    for (int n = 0; n < times; ++n) {
      if (key_of(n, helper) >= unit.rows_kv) continue;
      const float weight = exp2_approx(scores[n] - row_max);
      total += weight;
      delta += weight * d_weights[n];
    }
    total = warp_sum(total);
    delta = warp_sum(delta);
    if (lane_index() == 0) s.deferred_partials[state.stage()][helper] = {row_max, total, delta};
  }
  // Behind the segment's queries, by one of the helpers when all have looked.
  __device__ void store(Shared& s, const PipelineState& state, int helper) const {
    asm volatile("bar.sync 1, %0;" ::"n"(helper_threads) : "memory");
    if (helper > 0) return;
    if (lane_index() < 2 * packs)
      own_.store(Tile{lane_index() < packs ? s.q : s.d_out}.at<T>(deferred_row, lane_index() % packs));
    if (lane_index() > 0) return;
    float3 all = s.deferred_partials[state.stage()][0];
#pragma unroll
    for (int i = 1; i < helpers; ++i) {
      const float3 part = s.deferred_partials[state.stage()][i];
      const float largest = fmaxf(all.x, part.x);
      const float of_all = exp2_approx(all.x - largest), of_part = exp2_approx(part.x - largest);
      all = {largest, all.y * of_all + part.y * of_part, all.z * of_all + part.z * of_part};
    }
    s.lse[deferred_row] = all.x + log2f(all.y);
    s.deltas[deferred_row] = all.z / all.y;
  }

 private:
  static constexpr int times = (max_persistent_rows + helpers * warp_size - 1) / (helpers * warp_size);

  __device__ static int key_of(int n, int helper) {
    return (n * helpers + helper) * warp_size + lane_index();
  }
  __device__ Pack<T, pack> of_thread(int thread) const {
    Pack<T, pack> other;
#pragma unroll
    for (int i = 0; i < own_.words; ++i) other.bits.at[i] = __shfl_sync(0xffffffffu, own_.bits.at[i], thread);
    return other;
  }
  __device__ static void add(float& sum, const float (&x)[pack], const T* from) {
    float y[pack];
    read(from, y);
#pragma unroll
    for (int i = 0; i < pack; ++i) sum += x[i] * y[i];
  }

  Pack<T, pack> own_;
};

template <class T>
__device__ void complete_queries(Shared& s, const Problem& p, const WorkUnit& unit, const PipelineState& state,
                                 int helper) {
  DeferredQuery<T> deferred;
  if (unit.deferred >= 0) {
    deferred.load(p, unit);
    deferred.compute_statistics(s, p, unit, state, helper);
  }
  HelperRows<T> rows_of_tile, next;
  next.load(p, unit, 0, helper);
#pragma unroll 1
  for (int t = 0; t < tiles; ++t) {
    rows_of_tile = next;
    if (t + 1 < tiles) next.load(p, unit, t + 1, helper);
    s.queries_full[t].wait(state.queries_parity());
    rows_of_tile.finish(s, unit, t, helper);
    if (t == full_tiles && unit.deferred >= 0) deferred.store(s, state, helper);
    arrive(s.queries_ready[t]);
  }
}

// Zeros a row of all heads, by a warp.
template <class T>
__device__ void zero_row(const HeadRows& rows, int row, int heads) {
  const Pack<T, pack> zero{};
  for (int i = lane_index(); i < heads * packs; i += warp_size)
    zero.store(at<T>(rows, row, i / packs) + i % packs * pack);
}

// Zeros what no unit has: rows of segments without queries or without keys, and those behind the last segment. All
// helpers of all blocks share it.
template <class T>
__device__ void zero_uncovered_rows(const Problem& p, int helper) {
  const int first = static_cast<int>(blockIdx.x) * helpers + helper, step = static_cast<int>(gridDim.x) * helpers;
  const auto zero = [&p](int begin_q, int end_q, int begin_kv, int end_kv, int apart) {
    for (int row = begin_q; row < end_q; row += apart) zero_row<T>(p.d_q, row, p.heads_q);
    for (int row = begin_kv; row < end_kv; row += apart) {
      zero_row<T>(p.d_k, row, p.heads_kv);
      zero_row<T>(p.d_v, row, p.heads_kv);
    }
  };
  for (int i = first; i < p.segments; i += step) {
    const int begin_q = p.cu_q[i], end_q = p.cu_q[i + 1], begin_kv = p.cu_kv[i], end_kv = p.cu_kv[i + 1];
    const bool has_deferred = p.cu_deferred && p.cu_deferred[i] < p.cu_deferred[i + 1];
    if ((begin_q == end_q && !has_deferred) || begin_kv == end_kv) zero(begin_q, end_q, begin_kv, end_kv, 1);
  }
  zero(p.cu_q[p.segments] + first, p.tokens_q, p.cu_kv[p.segments] + first, p.tokens_kv, step);
}

template <class T>
__device__ void run_helper(Shared& s, const PersistentProblem& p, int helper) {
  for (PipelineState state;; ++state.count) {
    const unsigned stage = state.stage();
    s.keys_full[stage].wait(state.keys_parity());
    const WorkUnit unit = s.units[stage];
    if (const int end = min((unit.rows_kv + tile - 1) / tile * tile, max_persistent_rows); helper < 2)
      zero_tile_rows<T>(helper == 0 ? s.k[stage] : s.v[stage], unit.rows_kv, end);
    arrive(s.keys_ready[stage]);
    if (!unit.exists()) break;
    complete_queries<T>(s, p.call, unit, state, helper);
    for (Barrier& each : s.queries_empty) arrive(each);
    arrive(s.keys_empty[stage]);
  }
  zero_uncovered_rows<T>(p.call, helper);
}

// One of the groups that multiply.
template <class T>
class ConsumerWarpgroup {
 public:
  __device__ ConsumerWarpgroup(Shared& shared, const PersistentProblem& problem, int index)
      : s_(shared), p_(problem.call), index_(index), scale_(problem.call.scale * log2_e) {}

  __device__ void run() {
    for (;; ++state_.count) {
      s_.keys_ready[state_.stage()].wait(state_.keys_parity());
      unit_ = s_.units[state_.stage()];
      if (!unit_.exists()) return;
#pragma unroll 1
      for (int t = consumer_warpgroups - 1 - index_; t < tiles_of(unit_.rows_kv); t += consumer_warpgroups)
        process_key_tile(t);
      release_queries(tiles);
      released_ = 0;
#pragma unroll 1
      for (int t = 0; t < tiles_of(unit_.rows_q); ++t)
        if (is_own(t)) process_query_tile(t);
      arrive(s_.keys_empty[state_.stage()]);
    }
  }

 private:
  static constexpr int steps = head_dim / 16;
  static constexpr unsigned step_bytes = 16 * 2, mn_step_bytes = 16 * row_bytes; // to the next 16 of what is summed

  // Queries as columns: `size` of them from tile t on.
  template <int size>
  struct ScoreTile {
    Accumulator<size> weights, d_weights;
  };

  // Queries' tiles are a group's by twos, so that those with which the next unit begins are left first.
  __device__ bool is_own(int t) const {
    return t / 2 % consumer_warpgroups == index_;
  }
  // Leaves those before that one, but for the group's own, which it still needs.
  __device__ void release_queries(int end) {
#pragma unroll 1
    for (; released_ < end; ++released_) {
      if (is_own(released_) && released_ < tiles_of(unit_.rows_q)) continue;
      s_.queries_ready[released_].wait(state_.queries_parity()); // so that the unit before has ended
      arrive(s_.queries_empty[released_]);
    }
  }

  // Begins the products of a tile of keys with those queries.
  template <int size>
  __device__ void start_products(ScoreTile<size>& x, std::uint64_t k, std::uint64_t v, int t) {
    const std::uint64_t q = matrix_descriptor(s_.q + t * tile_bytes),
                        d_out = matrix_descriptor(s_.d_out + t * tile_bytes);
    s_.queries_ready[t].wait(state_.queries_parity());
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      wgmma<T, false>(x.weights, advance_descriptor(k, step * step_bytes), advance_descriptor(q, step * step_bytes),
                      step > 0);
    wgmma_commit();
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      wgmma<T, false>(x.d_weights, advance_descriptor(v, step * step_bytes),
                      advance_descriptor(d_out, step * step_bytes), step > 0);
    wgmma_commit();
  }
  // last: the group has no more tiles of keys.
  template <int size>
  __device__ void add_query_tile(std::uint64_t k, std::uint64_t v, Accumulator<64>& d_k, Accumulator<64>& d_v, int t,
                                 bool last) {
    ScoreTile<size> x;
    start_products(x, k, v, t);
    const float *const lse = s_.lse + t * tile + column_of(0), *const deltas = s_.deltas + t * tile + column_of(0);
    AFragment by_weights[size / 16], by_scores[size / 16];
    wgmma_wait<1>();
    if (last) release_queries(t);
    fence_accumulators(x.weights);
#pragma unroll
    for (int b = 0; b < size / 8; ++b) {
      const float2 row_lse = *reinterpret_cast<const float2*>(lse + 8 * b);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& weight = x.weights[4 * b + i];
        weight = exp2_approx(weight * scale_ - (i % 2 == 0 ? row_lse.x : row_lse.y));
      }
    }
#pragma unroll
    for (int step = 0; step < size / 16; ++step) round_to<T>(by_weights[step], x.weights + 8 * step);
    wgmma_wait<0>();
    fence_accumulators(x.d_weights);
#pragma unroll
    for (int b = 0; b < size / 8; ++b) {
      const float2 delta = *reinterpret_cast<const float2*>(deltas + 8 * b);
#pragma unroll
      for (int i = 0; i < 4; ++i) x.weights[4 * b + i] *= x.d_weights[4 * b + i] - (i % 2 == 0 ? delta.x : delta.y);
    }
#pragma unroll
    for (int step = 0; step < size / 16; ++step) round_to<T>(by_scores[step], x.weights + 8 * step);
    const std::uint64_t q = matrix_descriptor(s_.q + t * tile_bytes),
                        d_out = matrix_descriptor(s_.d_out + t * tile_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < size / 16; ++step) {
      wgmma<T, true>(d_v, by_weights[step], advance_descriptor(d_out, step * mn_step_bytes), true);
      wgmma<T, true>(d_k, by_scores[step], advance_descriptor(q, step * mn_step_bytes), true);
    }
    wgmma_commit();
  }

  __device__ void process_key_tile(int t) {
    const std::uint64_t k = matrix_descriptor(s_.k[state_.stage()] + t * tile_bytes),
                        v = matrix_descriptor(s_.v[state_.stage()] + t * tile_bytes);
    const int end = full_tiles_of(unit_.rows_q);
    const bool last = t + consumer_warpgroups >= tiles_of(unit_.rows_kv);
    Accumulator<64> d_k = {}, d_v = {};
#pragma unroll 1
    for (int of = 0; of < end; ++of) add_query_tile<tile>(k, v, d_k, d_v, of, last);
    if (unit_.rows_q > full_tile_rows || unit_.deferred >= 0)
      add_query_tile<tail_rows>(k, v, d_k, d_v, full_tiles, last);
    wgmma_wait<0>();
    fence_accumulators(d_k);
    fence_accumulators(d_v);
    store(p_.d_v, d_v, t, unit_.begin_kv, unit_.rows_kv, 1);
    store(p_.d_k, d_k, t, unit_.begin_kv, unit_.rows_kv, p_.scale);
  }

  // A tile of queries as left operands, and what a thread's two rows have.
  struct QueryTile {
    AFragment q[steps], d_out[steps];
    float row_lse[2], delta[2];
  };

  template <int size>
  __device__ void start_products(ScoreTile<size>& x, const QueryTile& own, int t) {
    const std::uint64_t k = matrix_descriptor(s_.k[state_.stage()] + t * tile_bytes),
                        v = matrix_descriptor(s_.v[state_.stage()] + t * tile_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      wgmma<T, false>(x.weights, own.q[step], advance_descriptor(k, step * step_bytes), step > 0);
    wgmma_commit();
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      wgmma<T, false>(x.d_weights, own.d_out[step], advance_descriptor(v, step * step_bytes), step > 0);
    wgmma_commit();
  }
  template <int size>
  __device__ void add_key_tile(const QueryTile& own, Accumulator<64>& d_q, int t) {
    ScoreTile<size> x;
    start_products(x, own, t);
    const int keys_left = unit_.rows_kv - t * tile;
    AFragment by_scores[size / 16];
    wgmma_wait<1>();
    fence_accumulators(x.weights);
#pragma unroll
    for (int i = 0; i < size / 2; ++i) x.weights[i] = exp2_approx(x.weights[i] * scale_ - own.row_lse[i / 2 % 2]);
    if (keys_left < size) {
#pragma unroll
      for (int i = 0; i < size / 2; ++i)
        if (i / 4 * 8 + column_of(i) >= keys_left) x.weights[i] = 0;
    }
    wgmma_wait<0>();
    fence_accumulators(x.d_weights);
#pragma unroll
    for (int i = 0; i < size / 2; ++i) x.weights[i] *= x.d_weights[i] - own.delta[i / 2 % 2];
#pragma unroll
    for (int step = 0; step < size / 16; ++step) round_to<T>(by_scores[step], x.weights + 8 * step);
    const std::uint64_t k = matrix_descriptor(s_.k[state_.stage()] + t * tile_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < size / 16; ++step)
      wgmma<T, true>(d_q, by_scores[step], advance_descriptor(k, step * mn_step_bytes), true);
    wgmma_commit();
  }

  __device__ void process_query_tile(int t) {
    const int first = t < full_tiles ? warp_index() % warpgroup_warps * rows_of_warp : 0; // as far as there are rows
    const Tile q{s_.q + t * tile_bytes}, d_out{s_.d_out + t * tile_bytes};
    QueryTile own;
    s_.queries_ready[t].wait(state_.queries_parity());
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const Fragment of_q = load_a(q, first, step), of_d_out = load_a(d_out, first, step);
#pragma unroll
      for (int i = 0; i < 4; ++i) own.q[step][i] = of_q.at[i], own.d_out[step][i] = of_d_out.at[i];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = t * tile + first + lane_index() / 4 + 8 * h;
      own.row_lse[h] = s_.lse[row], own.delta[h] = s_.deltas[row];
    }
    arrive(s_.queries_empty[t]);

    const int end = full_tiles_of(unit_.rows_kv);
    Accumulator<64> d_q = {};
#pragma unroll 1
    for (int of = 0; of < end; ++of) add_key_tile<tile>(own, d_q, of);
    if (unit_.rows_kv > full_tile_rows) add_key_tile<tail_rows>(own, d_q, full_tiles);
    wgmma_wait<0>();
    fence_accumulators(d_q);
    store(p_.d_q, d_q, t, unit_.begin_q, unit_.rows_q, p_.scale);
  }

  __device__ void store(const HeadRows& to, const Accumulator<64>& sum, int t, int begin, int rows, float factor) {
    const WarpRows own{{}, begin, t * tile + warp_index() % warpgroup_warps * rows_of_warp, rows, unit_.head};
    store_rows<T>(own, to, {s_.results[warp_index()]}, reinterpret_cast<const float(&)[blocks][4]>(sum),
                  {factor, factor});
  }

  Shared& s_;
  const Problem& p_;
  const int index_;
  const float scale_;
  PipelineState state_;
  WorkUnit unit_;
  int released_ = 0; // tiles of the unit's queries
};

__device__ void init_barriers(Shared& s) {
  if (thread_index() == 0) {
    for (Barrier& each : s.keys_full) each.init(1);
    for (Barrier& each : s.keys_ready) each.init(helper_threads);
    for (Barrier& each : s.keys_empty) each.init(consumer_and_helper_threads);
    for (Barrier& each : s.queries_full) each.init(1);
    for (Barrier& each : s.queries_ready) each.init(helper_threads);
    for (Barrier& each : s.queries_empty) each.init(consumer_and_helper_threads);
    Barrier::fence_init();
  }
  __syncthreads();
}

#endif

template <class T>
__global__ void __launch_bounds__(block_threads, 1)
    persistent_backward_kernel(const __grid_constant__ PersistentProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  init_barriers(s);
  const int group = __shfl_sync(0xffffffffu, warp_index() / warpgroup_warps, 0); // one for the warp
  if (group == consumer_warpgroups) {
    setmaxnreg_dec<helper_registers>();
    if (warp_index() == consumer_warps)
      run_producer(s, p);
    else
      run_helper<T>(s, p, warp_index() - consumer_warps - 1);
  } else {
    setmaxnreg_inc<consumer_registers>();
    ConsumerWarpgroup<T>(s, p, group).run();
  }
#endif
}

} // namespace

bool persistent_backward_supported(const Problem& p) {
  return persistent_forward_supported(p) && heads_tma_compatible(p.d_out, p.heads_q);
}

void persistent_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem) {
  const auto boxes = [&](const HeadRows& rows, int tokens) {
    return head_tensor_maps(dtype, rows, tokens, problem.heads_q);
  };
  const PersistentProblem p{problem, boxes(problem.q, problem.tokens_q), boxes(problem.k, problem.tokens_kv),
                            boxes(problem.v, problem.tokens_kv), boxes(problem.d_out, problem.tokens_q)};
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    const auto kernel = persistent_backward_kernel<typename decltype(element)::type>;
    constexpr int bytes = sizeof(Shared) + alignof(Shared);
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
    kernel<<<static_cast<unsigned>(multiprocessors), block_threads, bytes, sdk::stream_of(call)>>>(p);
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

} // namespace fvlm::plugins
