// persistent_backward_producer.cuh: the shared memory of the persistent backward, its barriers, and the warps that do
// not multiply: the producer warp, which issues TMA loads, and three helper warps, which zero rows past the end of a
// segment, complete the statistics of its queries and compute those of deferred queries. See persistent_backward.cu.
#pragma once

#include "persistent.cuh"
#include "warp_rows.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace hopper;

// the last tile has fewer rows
constexpr int tile = 64, full_tiles = max_persistent_rows / tile, tiles = full_tiles + 1;
constexpr int full_tile_rows = full_tiles * tile, tail_rows = max_persistent_rows - full_tile_rows;
constexpr int consumer_warpgroups = 2, consumer_warps = consumer_warpgroups * warpgroup_warps,
              block_threads = (consumer_warpgroups + 1) * warpgroup_threads;
constexpr int helpers = 3;

static_assert(tail_rows == rows_of_warp);

struct PersistentProblem {
  Problem call;
  HeadTensorMaps q, k, v, d_out;
};

// Barriers of a work unit's rows: `full` when TMA has loaded them, `ready` when the rows past the end are zero and the
// statistics of the queries are complete, `empty` when they may be overwritten. Queries are released tile by tile.
struct alignas(1024) Shared {
  char k[2][rows_bytes], v[2][rows_bytes];
  char q[rows_bytes], d_out[rows_bytes];
  char results[consumer_warps][rows_of_warp * row_bytes];
  // past the last query infinite and 0, which gives probability 0
  float lse[max_persistent_rows], deltas[max_persistent_rows];
  float3 deferred_partials[2][helpers]; // see DeferredQuery; of the current unit and the next
  WorkUnit units[2];
  Barrier keys_full[2], keys_ready[2], keys_empty[2];
  Barrier queries_full[tiles], queries_ready[tiles], queries_empty[tiles];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

constexpr int consumer_registers = 208, helper_registers = 88;
constexpr int tile_bytes = tile * row_bytes;
constexpr int deferred_row = max_rows_with_deferred; // row of the deferred query in shared memory
constexpr int helper_threads = helpers * warp_size;
// threads that have to release what was loaded
constexpr int consumer_and_helper_threads = consumer_warps * warp_size + helper_threads;

// Index of this block's current work unit, from which pipeline stage and barrier parities follow.
struct PipelineState {
  unsigned count = 0;

  __device__ unsigned stage() const { return count % 2; }
  __device__ unsigned keys_parity() const { return count / 2 % 2; } // barrier parities
  __device__ unsigned queries_parity() const { return count % 2; }
};

struct HasQueriesAndKeys {
  __device__ bool operator()(const WorkUnit& unit) const {
    return unit.rows_kv > 0 && (unit.rows_q > 0 || unit.deferred >= 0);
  }
};

// How many of a segment's `rows` are in a tile.
__device__ int rows_in(int rows, int tile_index) {
  return min(max(rows - tile_index * tile, 0), tile);
}
__device__ int tiles_of(int rows) {
  return (rows + tile - 1) / tile;
}
__device__ int full_tiles_of(int rows) {
  return min(tiles_of(rows), full_tiles);
}

// Called by all threads that wrote what the barrier guards, or that no longer need it.
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

// Zeros rows of a tile past the end of the segment.
template <class T>
__device__ void zero_tile_rows(char* memory, int rows, int end) {
  const Tile of{memory};
  const Pack<T, pack> zero{};
  for (int i = rows * packs + lane_index(); i < end * packs; i += warp_size) zero.store(of.at<T>(i / packs, i % packs));
}

// A helper warp's share of a tile of queries: four rows per iteration, eight threads per row.
template <class T>
class HelperRows {
 public:
  // Starts loading what the statistics are computed from.
  __device__ void load(const Problem& p, const WorkUnit& unit, int t, int helper) {
    const int begin = unit.begin_q + t * tile, rows = rows_in(unit.rows_q, t);
#pragma unroll
    for (int n = 0; n < times; ++n)
      if (const int row = row_of(helper, n); row < rows)
        out_[n].load(at<T>(p.out, begin + row, unit.head) + index() * pack);
    if (const int row = row_of_thread(helper); row < rows) log_sum_ = p.lse[(begin + row) * p.heads_q + unit.head];
  }
  // Zeros missing rows and writes the statistics of the tile.
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
  // The row whose logsumexp this thread loads.
  __device__ static int row_of_thread(int helper) {
    return (lane_index() / rows_in_flight * helpers + helper) * rows_in_flight + lane_index() % rows_in_flight;
  }
  __device__ static int index() {
    return lane_index() % packs;
  }

  Pack<T, pack> out_[times];
  float log_sum_;
};

// A deferred query: it comes from another call, so its logsumexp and delta have to be computed here. Each helper warp
// takes every third 32 keys.
template <class T>
class DeferredQuery {
 public:
  // Starts loading it; a thread holds one pack of q or d_out.
  __device__ void load(const Problem& p, const WorkUnit& unit) {
    if (lane_index() < 2 * packs)
      own_.load(at<T>(lane_index() < packs ? p.deferred_q : p.deferred_d_out, unit.deferred, unit.head) +
                lane_index() % packs * pack);
  }
  // Computes this helper's part of the statistics from the keys and values.
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
    for (int lane_mask = warp_size / 2; lane_mask > 0; lane_mask /= 2)
      row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, lane_mask));
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
  // Called when all helpers have their parts: stores the query after the segment's own, and one helper combines the
  // statistics.
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

// Zeros a row of all heads. Called by a whole warp.
template <class T>
__device__ void zero_row(const HeadRows& rows, int row, int heads) {
  const Pack<T, pack> zero{};
  for (int i = lane_index(); i < heads * packs; i += warp_size)
    zero.store(at<T>(rows, row, i / packs) + i % packs * pack);
}

// Zeros the gradients that no work unit writes: rows of segments without queries or without keys, and padding after the
// last segment. Shared by the helper warps of all blocks.
template <class T>
__device__ void zero_uncovered_rows(const Problem& p, int helper) {
  const int first = static_cast<int>(blockIdx.x) * helpers + helper, step = static_cast<int>(gridDim.x) * helpers;
  const auto zero = [&p](int begin_q, int end_q, int begin_kv, int end_kv, int stride) {
    for (int row = begin_q; row < end_q; row += stride) zero_row<T>(p.d_q, row, p.heads_q);
    for (int row = begin_kv; row < end_kv; row += stride) {
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

#endif

} // namespace
} // namespace fvlm::plugins
