// resident_kv_backward.cu: attention backward for short segments: Hopper, at most 144 rows and 8 query heads per key
// head, causal or not, rotation inside.
//
// A block, or a cluster of up to four blocks if there are few segments, owns one key head of a segment with all its
// keys in shared memory. Four warpgroups: two consumers alternate on 64-row tiles of queries, computing probabilities
// and d_scores, and from these d_q; the third accumulates d_k and d_v transposed (64 dimensions as rows, keys as
// columns), so all keys fit in its registers; the fourth prepares the next tiles (TMA loads, rotation, delta), four
// pipeline stages deep. Five products, none recomputed. The blocks of a cluster add their sums in distributed shared
// memory.
//
// Measured on an H200 (bf16, 9:3 heads, causal; bench/LOG.md, 2026-11-23), per layer: 8 x 136 tokens 15.0 us, 32 x 136
// 26.5 us, 64 x 136 45.3 us, where backward.cu took 17.6, 40.0 and 71.8 us.
#include "common/cuda_cluster.cuh"
#include "resident_kv.cuh"
#include "softmax_gradient.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace hopper;

constexpr int consumer_warpgroups = 2, block_threads = (consumer_warpgroups + 2) * warpgroup_threads;
constexpr int stages = 4;                    // pipeline stages of query tiles
constexpr int max_tiles = 12, max_parts = 4; // tiles per block; blocks per cluster
constexpr int sum_row_stride = head_dim + 4; // in floats; padded against bank conflicts between neighbouring keys

struct BackwardProblem : ResidentProblem {
  CUtensorMap d_out, out, compensation;

  BackwardProblem(const Problem& p, fvlm_dtype dtype)
      : ResidentProblem(p, dtype), d_out(tiles.boxes(p, dtype, p.d_out)), out(tiles.boxes(p, dtype, p.out)),
        compensation(p.out_compensation ? tiles.compensation_tensor_map(p) : CUtensorMap{}) {}
};

struct Statistic {
  float row_lse, delta;
};

struct alignas(1024) Shared {
  char k[keys_bytes], v[keys_bytes];
  struct Stage {
    char q[tile_bytes], d_out[tile_bytes];
    char out[tile_bytes]; // later overwritten with d_q
    char compensation[tile_rows * head_dim];
  };
  union {
    Stage stage[stages];
    float sums[2][max_resident_rows][sum_row_stride]; // d_k and d_v, once all tiles are finished
  };
  struct Weights {
    char weights[tile_bytes], d_scores[tile_bytes];
  } weights[consumer_warpgroups];
  char rotations[RotationTable::bytes];
  Statistic statistics[max_tiles][tile_rows];
  std::uint64_t steps[frequencies];
  std::int32_t positions_q[max_resident_rows], positions_kv[max_resident_rows];
  Barrier keys_full, full[stages], ready[stages], empty[stages];
  Barrier weights_full[consumer_warpgroups], weights_empty[consumer_warpgroups];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// Per thread. The sum must be exactly what the kernel is launched with, 128 per thread.
constexpr int consumer_registers = 144, summing_registers = 176, producer_registers = 48;
static_assert(consumer_warpgroups * consumer_registers + summing_registers + producer_registers ==
              (consumer_warpgroups + 2) * 128);

// byte offset to the next 16 of the summed dimension
constexpr unsigned step_bytes = 16 * 2, mn_step_bytes = 16 * row_bytes;

__device__ int thread_of_group() {
  return thread_index() % warpgroup_threads;
}
__device__ int warp_of_group() {
  return warp_index() % warpgroup_warps;
}

// Called by all threads that wrote what the barrier guards, or that no longer need it.
__device__ void arrive(Barrier& barrier) {
  fence_proxy_async();
  barrier.arrive();
}

template <class T>
class Block {
 public:
  __device__ Block(Shared& shared, const BackwardProblem& problem, const KeyHeadTask& task)
      : s_(shared), all_(problem), p_(problem.call), task_(task), tiles_(task.tiles()), rotations_{shared.rotations} {}

  __device__ void run() {
    begin();
    const int group = __shfl_sync(0xffffffffu, warp_index() / warpgroup_warps, 0); // uniform within the warp
    if (group < consumer_warpgroups) {
      setmaxnreg_inc<consumer_registers>();
      if (group < tiles_) prepare(group, 0), prepare(group, 1);
      __syncthreads();
#pragma unroll 1
      for (int i = group; i < tiles_; i += consumer_warpgroups) process_query_tile(i, group);
      __syncthreads(); // the tiles are no longer used
      sync_all();
      finish();
    } else if (group == consumer_warpgroups) {
      setmaxnreg_inc<summing_registers>();
      prepare_keys(0);
      sum_key_gradients();
      sync_all();
      finish();
    } else {
      setmaxnreg_dec<producer_registers>();
      prepare_keys(1);
#pragma unroll 1
      for (int i = consumer_warpgroups; i < tiles_; ++i) {
        prepare(i, 1);
        if (const int next = i + stages - consumer_warpgroups;
            next >= stages && next < tiles_ && thread_of_group() == 0) {
          s_.empty[next % stages].wait(static_cast<unsigned>(next / stages - 1) & 1);
          load_tile(next);
        }
      }
      __syncthreads(); // the tiles are no longer used
      sync_all();
    }
    if (task_.parts > 1) cluster_sync(); // other blocks may still read this block's sums
  }

 private:
  static constexpr int steps = head_dim / 16;

  __device__ void begin() {
    // The thread that initializes a barrier also issues the loads it guards, so no block-wide barrier is needed in
    // between.
    if (lane_index() == 0) {
      if (warp_index() == stages) {
        s_.keys_full.init(1);
        for (Barrier& each : s_.ready) each.init(2 * warpgroup_threads);
        for (Barrier& each : s_.empty) each.init(2 * warpgroup_threads);
        for (Barrier& each : s_.weights_full) each.init(warpgroup_threads);
        for (Barrier& each : s_.weights_empty) each.init(warpgroup_threads);
        Barrier::fence_init();
        s_.keys_full.arrive_and_expect_tx(static_cast<unsigned>(2 * loaded_rows(task_.rows_kv) * row_bytes));
        tma_load_rows(s_.k, all_.k, task_.head_kv, task_.begin_kv, task_.rows_kv, s_.keys_full);
        tma_load_rows(s_.v, all_.v, task_.head_kv, task_.begin_kv, task_.rows_kv, s_.keys_full);
      } else if (warp_index() < stages) {
        s_.full[warp_index()].init(1);
        Barrier::fence_init();
        if (warp_index() < tiles_) load_tile(warp_index());
      }
    }
    // All of these loads are in flight at once.
    const int t = thread_index();
    const bool rotates_q = p_.positions_q && t < task_.rows_q, rotates_kv = p_.positions_kv && t < task_.rows_kv;
    const std::int32_t position_q = rotates_q ? p_.positions_q[task_.begin_q + t] : 0,
                       position_kv = rotates_kv ? p_.positions_kv[task_.begin_kv + t] : 0;
    const float first = row_lse(t);
    if (t < frequencies) s_.steps[t] = p_.steps[t];
    if (rotates_q) s_.positions_q[t] = position_q;
    if (rotates_kv) s_.positions_kv[t] = position_kv;
    if (t < tiles_ * tile_rows) s_.statistics[t / tile_rows][t % tile_rows].row_lse = first;
#pragma unroll 1
    for (int i = t + block_threads; i < tiles_ * tile_rows; i += block_threads)
      s_.statistics[i / tile_rows][i % tile_rows].row_lse = row_lse(i);
    zero_padding<T>(p_.d_q, p_.heads_q, task_.end_q, p_.tokens_q);
    zero_padding<T>(p_.d_k, p_.heads_kv, task_.end_kv, p_.tokens_kv);
    zero_padding<T>(p_.d_v, p_.heads_kv, task_.end_kv, p_.tokens_kv);
    keys_share_rotations_ =
        __syncthreads_and(t >= task_.rows_kv || (rotates_q && rotates_kv && position_q == position_kv));
    if (p_.positions_q) {
#pragma unroll 1
      for (int i = t; i < task_.rows_q * RotationTable::pairs; i += block_threads)
        *rotations_.at(i / RotationTable::pairs, i % RotationTable::pairs) = RotationTable::rotation_pair(
            s_.steps + i % RotationTable::pairs * 2, s_.positions_q[i / RotationTable::pairs]);
      __syncthreads();
    }
  }

  // Of row i, counted over all tiles of this block.
  __device__ float row_lse(int i) const {
    const WarpRows rows = task_.rows(i / tile_rows, i % tile_rows);
    return i < tiles_ * tile_rows && rows.first < rows.count
               ? p_.lse[rows.token(rows.first) * p_.heads_q + rows.head_of(rows.first)]
               : INFINITY; // gives probability 0
  }

  // Rotates half of the keys and makes them ready for wgmma.
  __device__ void prepare_keys(int half) {
    s_.keys_full.wait(0);
    rotate_or_zero_keys<T>(task_, s_.k, s_.v, half * warpgroup_warps + warp_of_group(), 2 * warpgroup_warps,
                           [&](int key) {
                             if (keys_share_rotations_)
                               rotations_.rotate<T>(Tile{s_.k}, key, copy_quarter(), key);
                             else if (p_.positions_kv)
                               rotate_in_place<T>(Tile{s_.k}, key, copy_quarter(), s_.steps, s_.positions_kv[key]);
                           });
    fence_proxy_async();
    __syncthreads();
  }

  __device__ void load_tile(int i) {
    Shared::Stage& stage = s_.stage[i % stages];
    Barrier& full = s_.full[i % stages];
    const int token = task_.begin_q + (i * task_.parts + task_.part) * all_.tiles.tokens, head = task_.first_head();
    full.arrive_and_expect_tx(
        static_cast<unsigned>(all_.tiles.rows * (3 * row_bytes + (p_.out_compensation ? head_dim : 0))));
    tma_load(stage.q, all_.q, 0, head, token, full);
    tma_load(stage.d_out, all_.d_out, 0, head, token, full);
    tma_load(stage.out, all_.out, 0, head, token, full);
    if (p_.out_compensation) tma_load(stage.compensation, all_.compensation, 0, head, token, full);
  }

  // Prepares half a tile: rotates its queries, computes delta, zeros missing rows. Called by a warpgroup.
  __device__ void prepare(int i, int half) {
    Shared::Stage& stage = s_.stage[i % stages];
    const Tile q{stage.q}, d_out{stage.d_out}, out{stage.out};
    const int part = copy_quarter();
    s_.full[i % stages].wait(static_cast<unsigned>(i / stages) & 1);
    const int row = half * tile_rows / 2 + warp_of_group() * 8 + lane_index() % 8;
    const WarpRows rows = task_.rows(i, row);
    const bool is_there = rows.first < rows.count;
    if (!is_there) {
      zero_packs<T>(q, row, part);
      zero_packs<T>(d_out, row, part);
    } else if (p_.positions_q) {
      rotations_.rotate<T>(q, row, part, rows.head_group.row_of(rows.first));
    }
    float sum = 0;
    if (is_there) {
#pragma unroll 1
      for (int n = 0; n < 2; ++n) {
        const int index = part + n * packs / 2;
        Pack<T, pack> one, other;
        one.load(d_out.at<T>(row, index));
        other.load(out.at<T>(row, index));
        sum += dot<T>(one, other,
                      p_.out_compensation ? reinterpret_cast<const uint2*>(stage.compensation)[row * packs + index]
                                          : uint2{});
      }
    }
    sum = quad_sum<8>(sum);
    if (part == 0) s_.statistics[i][row].delta = sum;
    arrive(s_.ready[i % stages]);
  }

  // The statistics of the two rows of a query tile that a thread holds.
  struct Own {
    int visible_keys[2];
    Statistic statistic[2];
  };

  __device__ void process_query_tile(int i, int group) {
    Shared::Stage& stage = s_.stage[i % stages];
    const WarpRows rows = task_.rows(i, warp_of_group() * rows_of_warp);
    const int chunks = task_.visible_chunks(i), keys_visible_to_all = task_.keys_visible_to_all(i);
    s_.ready[i % stages].wait(static_cast<unsigned>(i / stages) & 1);
    Own own;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane_index() / 4 + 8 * h;
      own.visible_keys[h] = task_.visible_keys(rows.clamped(rows.first + row));
      own.statistic[h] = s_.statistics[i][warp_of_group() * rows_of_warp + row];
    }
    Accumulator<64> d_q = {};
#pragma unroll 1
    for (int c = 0; c < min(chunks, full_chunks); ++c)
      process_key_chunk<64>(d_q, stage, own, c, keys_visible_to_all, group);
    if (chunks > full_chunks) process_key_chunk<tail_chunk>(d_q, stage, own, full_chunks, keys_visible_to_all, group);
    wgmma_wait<0>();
    fence_accumulators(d_q);
    auto& sum = reinterpret_cast<float(&)[blocks][4]>(d_q);
    if (p_.positions_q) {
      const int flat = rows.first + lane_index() / 4;
      rotations_.rotate_back(
          sum, {rows.head_group.row_of(rows.clamped(flat)), rows.head_group.row_of(rows.clamped(flat + 8))});
    }
    store_rows<T>(rows, p_.d_q, Tile{stage.out}.rows_from(warp_of_group() * rows_of_warp), sum, {p_.scale, p_.scale});
    arrive(s_.empty[i % stages]);
  }

  // Adds a chunk of keys to the tile's d_q, and passes probabilities and d_scores on to the summing warpgroup.
  template <int keys>
  __device__ void process_key_chunk(Accumulator<64>& d_q, const Shared::Stage& stage, const Own& own, int c,
                                    int keys_visible_to_all, int group) {
    const std::uint64_t q = matrix_descriptor(stage.q), d_out = matrix_descriptor(stage.d_out),
                        k = matrix_descriptor(s_.k + c * tile_bytes), v = matrix_descriptor(s_.v + c * tile_bytes);
    Accumulator<keys> weights, d_scores;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      wgmma<T, false>(weights, advance_descriptor(q, step * step_bytes), advance_descriptor(k, step * step_bytes),
                      step > 0);
    wgmma_commit();
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      wgmma<T, false>(d_scores, advance_descriptor(d_out, step * step_bytes), advance_descriptor(v, step * step_bytes),
                      step > 0);
    wgmma_commit();

    const float scale = p_.scale * log2_e;
    Shared::Weights& given = s_.weights[group];
    AFragment by_weights, by_scores[keys / 16];
    wgmma_wait<1>();
    fence_accumulators(weights);
#pragma unroll
    for (int n = 0; n < keys / 2; ++n) weights[n] = exp2_approx(weights[n] * scale - own.statistic[n / 2 % 2].row_lse);
    if (c * tile_rows + keys > keys_visible_to_all) {
#pragma unroll
      for (int n = 0; n < keys / 2; ++n)
        if (c * tile_rows + n / 4 * 8 + column_of(n) >= own.visible_keys[n / 2 % 2]) weights[n] = 0;
    }
    s_.weights_empty[group].wait((count_ & 1) ^ 1);
    ++count_;
    const std::uint32_t to_weights = matrix_address(given.weights + warp_of_group() * rows_of_warp * row_bytes),
                        to_scores = matrix_address(given.d_scores + warp_of_group() * rows_of_warp * row_bytes);
#pragma unroll
    for (unsigned step = 0; step < keys / 16; ++step) {
      round_to<T>(by_weights, weights + 8 * step);
      Matrix8x8x4{{by_weights[0], by_weights[1], by_weights[2], by_weights[3]}}.store(to_weights ^ step << 5);
    }
    wgmma_wait<0>();
    fence_accumulators(d_scores);
#pragma unroll
    for (int n = 0; n < keys / 2; ++n) d_scores[n] = weights[n] * (d_scores[n] - own.statistic[n / 2 % 2].delta);
#pragma unroll
    for (unsigned step = 0; step < keys / 16; ++step) {
      round_to<T>(by_scores[step], d_scores + 8 * step);
      Matrix8x8x4{{by_scores[step][0], by_scores[step][1], by_scores[step][2], by_scores[step][3]}}.store(to_scores ^
                                                                                                          step << 5);
    }
    arrive(s_.weights_full[group]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < keys / 16; ++step)
      wgmma<T, true>(d_q, by_scores[step], advance_descriptor(k, step * mn_step_bytes), true);
    wgmma_commit();
  }

  // The third warpgroup: accumulates d_k and d_v.
  __device__ void sum_key_gradients() {
    Accumulator<64> d_k[full_chunks] = {}, d_v[full_chunks] = {};
    Accumulator<tail_chunk> d_k_tail = {}, d_v_tail = {};
    unsigned counts[consumer_warpgroups] = {};
#pragma unroll 1
    for (int i = 0; i < tiles_; ++i) {
      if (i + consumer_warpgroups < tiles_) prepare(i + consumer_warpgroups, 0);
      const Shared::Stage& stage = s_.stage[i % stages];
      const int chunks = task_.visible_chunks(i), group = i % consumer_warpgroups;
      unsigned count = group == 0 ? counts[0] : counts[1];
#pragma unroll
      for (int c = 0; c < full_chunks; ++c)
        if (c < chunks) accumulate_key_gradients(d_k[c], d_v[c], stage, group, count++);
      if (chunks > full_chunks) accumulate_key_gradients(d_k_tail, d_v_tail, stage, group, count++);
      (group == 0 ? counts[0] : counts[1]) = count;
      arrive(s_.empty[i % stages]);
    }
    __syncthreads(); // the tiles are no longer used
#pragma unroll
    for (int c = 0; c < full_chunks; ++c) {
      store_sums(s_.sums[0], c, d_k[c]);
      store_sums(s_.sums[1], c, d_v[c]);
    }
    store_sums(s_.sums[0], full_chunks, d_k_tail);
    store_sums(s_.sums[1], full_chunks, d_v_tail);
  }

  template <int size>
  __device__ void accumulate_key_gradients(float (&d_k)[size], float (&d_v)[size], const Shared::Stage& stage,
                                           int group, unsigned count) {
    const Shared::Weights& given = s_.weights[group];
    s_.weights_full[group].wait(count & 1);
    const std::uint64_t q = matrix_descriptor(stage.q), d_out = matrix_descriptor(stage.d_out),
                        weights = matrix_descriptor(given.weights), d_scores = matrix_descriptor(given.d_scores);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < tile_rows / 16; ++step) {
      const unsigned bytes = step * mn_step_bytes;
      wgmma<T, true, true>(d_v, advance_descriptor(d_out, bytes), advance_descriptor(weights, bytes), true);
      wgmma<T, true, true>(d_k, advance_descriptor(q, bytes), advance_descriptor(d_scores, bytes), true);
    }
    wgmma_commit();
    wgmma_wait<0>();
    fence_accumulators(d_v);
    fence_accumulators(d_k);
    arrive(s_.weights_empty[group]);
  }
  template <int size>
  __device__ void store_sums(float (&sums)[max_resident_rows][sum_row_stride], int key_chunk, const float (&x)[size]) {
    const int dimension = warp_of_group() * rows_of_warp + lane_index() / 4;
#pragma unroll
    for (int n = 0; n < size; ++n)
      sums[key_chunk * tile_rows + n / 4 * 8 + column_of(n)][dimension + n / 2 % 2 * 8] = x[n];
  }

  // Waits until the sums of all blocks are in shared memory.
  __device__ void sync_all() const {
    if (task_.parts > 1)
      cluster_sync();
    else
      __syncthreads();
  }

  // The first three warpgroups write the gradients of this block's share of the keys, from the sums of all blocks of
  // the cluster. A warp handles two keys at a time with four columns per thread, so remote reads are whole rows.
  __device__ void finish() {
    constexpr int columns = 4, threads_of_row = head_dim / columns;
    const int share = (task_.rows_kv + task_.parts - 1) / task_.parts, first = task_.part * share,
              end = min(first + share, task_.rows_kv), column = lane_index() % threads_of_row * columns;
    const bool is_low = column < head_dim / 2;
    const int pairs = max(end - first + 1, 0) / 2;
#pragma unroll 2
    for (int n = warp_index(); n < 2 * pairs; n += (consumer_warpgroups + 1) * warpgroup_warps) {
      const int side = n < pairs ? 0 : 1,
                unclamped_key = first + (n - side * pairs) * 2 + lane_index() / threads_of_row,
                key = min(unclamped_key, end - 1);
      float4 all = cluster_sum(&s_.sums[side][key][column]);
      float own[columns] = {all.x, all.y, all.z, all.w};
      if (side == 0) {
        float rotated[columns];
#pragma unroll
        for (int i = 0; i < columns; ++i) rotated[i] = __shfl_xor_sync(0xffffffffu, own[i], threads_of_row / 2);
        if (p_.positions_kv) {
#pragma unroll
          for (int i = 0; i < columns; i += 2) {
            const int frequency = column % (head_dim / 2) + i;
            const float4 both = keys_share_rotations_
                                    ? *rotations_.at(key, frequency / 2)
                                    : RotationTable::rotation_pair(s_.steps + frequency, s_.positions_kv[key]);
            own[i] = own[i] * both.x + (is_low ? rotated[i] : -rotated[i]) * both.y;
            own[i + 1] = own[i + 1] * both.z + (is_low ? rotated[i + 1] : -rotated[i + 1]) * both.w;
          }
        }
#pragma unroll
        for (float& each : own) each *= p_.scale;
      }
      if (unclamped_key < end)
        write(at<T>(side == 0 ? p_.d_k : p_.d_v, task_.begin_kv + key, task_.head_kv) + column, own);
    }
  }
  // The sum over the blocks of the cluster, in order of rank.
  __device__ float4 cluster_sum(const float* from) const {
    if (task_.parts == 1) return *reinterpret_cast<const float4*>(from);
    float4 of[max_parts] = {};
#pragma unroll
    for (int rank = 0; rank < max_parts; ++rank)
      if (rank < task_.parts) of[rank] = Cluster::load(from, rank);
#pragma unroll
    for (int rank = 1; rank < max_parts; ++rank) plugins::add(of[0], of[rank]);
    return of[0];
  }

  Shared& s_;
  const BackwardProblem& all_;
  const Problem& p_;
  const KeyHeadTask& task_;
  const int tiles_;
  const RotationTable rotations_;
  bool keys_share_rotations_; // keys and queries have the same positions, so the table serves both
  unsigned count_ = 0;        // chunks passed on so far
};

#endif

template <class T>
__global__ void __launch_bounds__(block_threads, 1)
    resident_backward_kernel(const __grid_constant__ BackwardProblem p, int parts) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run_block<Block<T>, Shared>(p, parts);
#endif
}

} // namespace

// For few and short segments the setup costs more than is gained.
bool resident_backward_supported(const Problem& p, int multiprocessors, int longest_q, int longest_kv) {
  return resident_supported(p, longest_q, longest_kv) &&
         (longest_q > tile_rows || key_head_count(p) >= multiprocessors) && heads_tma_compatible(p.out, p.heads_q) &&
         heads_tma_compatible(p.d_out, p.heads_q);
}

void resident_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& p, int longest_q) {
  // Enough blocks per segment to hold all tiles, and more if there are few segments.
  const QueryTiles tiles(p);
  int parts = 1;
  while (parts * max_tiles * tiles.tokens < longest_q ||
         (parts < max_parts && key_head_count(p) * parts * 2 <= multiprocessors))
    parts *= 2;
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    enqueue_resident<Shared>(call, resident_backward_kernel<typename decltype(element)::type>, block_threads,
                             BackwardProblem(p, dtype), parts, parts);
  });
}

} // namespace fvlm::plugins
