// resident_kv_backward.cu: two groups of four warps have tiles of queries in turn: weights and the gradients of scores,
// from which d_q comes at once. A third group adds what these give d_k and d_v, turned on their sides so that 64
// dimensions are a product's rows and keys its columns. A fourth one prepares the tiles to come. Few segments are
// shared by the blocks of a cluster, whose sums meet.
#include "common/cuda_cluster.cuh"
#include "resident_kv.cuh"
#include "softmax_gradient.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace hopper;

constexpr int consumer_warpgroups = 2, block_threads = (consumer_warpgroups + 2) * warpgroup_threads;
constexpr int stages = 4;                    // of tiles
constexpr int max_tiles = 12, max_parts = 4; // of a block; blocks of a cluster
constexpr int sum_row_stride = head_dim + 4; // floats, so that neighbouring keys do not fall on the same banks

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
    char out[tile_bytes]; // and then d_q
    char compensation[tile_rows * head_dim];
  };
  union {
    Stage stage[stages];
    float sums[2][max_resident_rows][sum_row_stride]; // d_k and d_v, when all tiles are done with
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

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // no other architecture's compiler understands it

// Of a thread; all together have what the kernel is started with, 128 a thread.
constexpr int consumer_registers = 144, summing_registers = 176, producer_registers = 48;
static_assert(consumer_warpgroups * consumer_registers + summing_registers + producer_registers ==
              (consumer_warpgroups + 2) * 128);

constexpr unsigned step_bytes = 16 * 2, mn_step_bytes = 16 * row_bytes; // to the next 16 of what is summed

__device__ int thread_of_group() {
  return thread_index() % warpgroup_threads;
}
__device__ int warp_of_group() {
  return warp_index() % warpgroup_warps;
}

// By all threads that have written what the barrier is for, or need it no more.
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
    const int group = __shfl_sync(0xffffffffu, warp_index() / warpgroup_warps, 0); // one for the warp
    if (group < consumer_warpgroups) {
      setmaxnreg_inc<consumer_registers>();
      if (group < tiles_) prepare(group, 0), prepare(group, 1);
      __syncthreads();
#pragma unroll 1
      for (int i = group; i < tiles_; i += consumer_warpgroups) process_query_tile(i, group);
      __syncthreads(); // nobody uses the tiles any more
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
      __syncthreads(); // nobody uses the tiles any more
      sync_all();
    }
    if (task_.parts > 1) cluster_sync(); // others still read this block's sums
  }

 private:
  static constexpr int steps = head_dim / 16;

  __device__ void begin() {
    // What a barrier is for is begun by the thread that begins the barrier.
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
    // All are on their way at once.
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
        *rotations_.at(i / RotationTable::pairs, i % RotationTable::pairs) =
            RotationTable::two(s_.steps + i % RotationTable::pairs * 2, s_.positions_q[i / RotationTable::pairs]);
      __syncthreads();
    }
  }

  // Of row i of those of all tiles.
  __device__ float row_lse(int i) const {
    const WarpRows rows = task_.rows(i / tile_rows, i % tile_rows);
    return i < tiles_ * tile_rows && rows.first < rows.count
               ? p_.lse[rows.token(rows.first) * p_.heads_q + rows.head_of(rows.first)]
               : INFINITY; // weight 0
  }

  // Half of the keys become ready for products.
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

  // Turns the queries of half a tile, completes their statistics and zeros the rows that are not there. By a group.
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

  // What a thread has two rows of in a tile of queries.
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

  // What a chunk of keys gives the tile's d_q, and the other group.
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

  // The third group's work.
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
    __syncthreads(); // nobody uses the tiles any more
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

  // Until all sums are there.
  __device__ void sync_all() const {
    if (task_.parts > 1)
      cluster_sync();
    else
      __syncthreads();
  }

  // Gradients of the block's share of the keys, from all blocks' sums, by the first three groups. A warp has two keys
  // at a time, a thread four columns, so that what comes from other blocks comes in whole rows.
  __device__ void finish() {
    constexpr int columns = 4, threads_of_row = head_dim / columns;
    const int share = (task_.rows_kv + task_.parts - 1) / task_.parts, first = task_.part * share,
              end = min(first + share, task_.rows_kv), column = lane_index() % threads_of_row * columns;
    const bool is_low = column < head_dim / 2;
    const int pairs = max(end - first + 1, 0) / 2;
#pragma unroll 2
    for (int n = warp_index(); n < 2 * pairs; n += (consumer_warpgroups + 1) * warpgroup_warps) {
      const int side = n < pairs ? 0 : 1, wanted = first + (n - side * pairs) * 2 + lane_index() / threads_of_row,
                key = min(wanted, end - 1);
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
            const float4 both = keys_share_rotations_ ? *rotations_.at(key, frequency / 2)
                                                      : RotationTable::two(s_.steps + frequency, s_.positions_kv[key]);
            own[i] = own[i] * both.x + (is_low ? rotated[i] : -rotated[i]) * both.y;
            own[i + 1] = own[i + 1] * both.z + (is_low ? rotated[i + 1] : -rotated[i + 1]) * both.w;
          }
        }
#pragma unroll
        for (float& each : own) each *= p_.scale;
      }
      if (wanted < end) write(at<T>(side == 0 ? p_.d_k : p_.d_v, task_.begin_kv + key, task_.head_kv) + column, own);
    }
  }
  // The sum of all blocks', in their order.
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
  bool keys_share_rotations_; // whether the table turns keys, too
  unsigned count_ = 0;        // chunks that the group has given
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

// Few and short segments have less to gain than it costs to begin.
bool resident_backward_supported(const Problem& p, int multiprocessors, int longest_q, int longest_kv) {
  return resident_supported(p, longest_q, longest_kv) &&
         (longest_q > tile_rows || key_head_count(p) >= multiprocessors) && heads_tma_compatible(p.out, p.heads_q) &&
         heads_tma_compatible(p.d_out, p.heads_q);
}

void resident_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& p, int longest_q) {
  // Blocks that share a segment: enough to hold all tiles, and more where there are few segments.
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
