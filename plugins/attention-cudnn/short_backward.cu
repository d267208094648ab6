// short_backward.cu: attention backward of short segments with head_dim 128: Hopper, at most 256 rows, causal or not.
//
// A block owns 64 queries and 64 keys of a key head of a segment. First it computes d_q of its queries, for each query
// head, from the tiles of keys that these attend to; then d_k and d_v of its keys from the tiles of queries of all
// heads. Scores and their gradients are computed twice and stay in the registers of one warpgroup, as operands of the
// next product, so that blocks exchange nothing and sums have one order. A second warpgroup loads the tiles through
// three slots of shared memory. Two blocks share a multiprocessor, so that one's products run while the other computes
// exponentials. Logsumexp and delta come from short_statistics.cu.
//
// In place of cuDNN's backward, a step of GhostVis with 32 samples takes 46.30 instead of 47.70 ms on an H100
// (bench/LOG.md, 2026-11-27).
#include "common/cuda_dependent_launch.cuh"
#include "common/cuda_hopper.cuh"
#include "common/cuda_tensor_map.h"
#include "short_backward.cuh"

#include <cstddef>

namespace fvlm::plugins {
namespace {

using namespace hopper;

constexpr int half_bytes = tile_rows * box_row_bytes, tile_bytes = 2 * half_bytes; // columns 0 to 63, then the others
constexpr int slots = 3, block_threads = 2 * warpgroup_threads;

struct BackwardProblem {
  ShortProblem call;
  CUtensorMap q, k, v, d_out;
};

struct alignas(1024) Shared {
  struct Pair {
    char one[tile_bytes], other[tile_bytes]; // queries and d_out, or keys and values
  } pairs[slots];
  char staging[warpgroup_warps][16 * box_row_bytes];
  Statistics statistics[slots]; // of the queries of a pair
  Barrier full[slots], empty[slots];
};
constexpr int shared_bytes = offsetof(Shared, empty) + sizeof(Barrier) * slots;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// Per thread, together what the kernel is launched with, 2 x 128.
constexpr int consumer_registers = 232, producer_registers = 24;

constexpr unsigned step_bytes = 16 * 2, mn_step_bytes = 16 * box_row_bytes; // to the next 16 of the summed dimension

using AFragments = std::uint32_t[tile_rows / 16][4];

__device__ int uniform(int value) {
  return __shfl_sync(0xffffffffu, value, 0); // the compiler knows that it is the same in the whole warp
}
__device__ int warp_index() {
  return uniform(static_cast<int>(threadIdx.x) / warp_size);
}
__device__ int lane_index() {
  return static_cast<int>(threadIdx.x) % warp_size;
}
template <class T>
__device__ float widened(std::uint32_t both, int which) {
  float values[2];
  Pack<T, 2>{{both}}.widen(values);
  return values[which];
}
template <class T>
__device__ void round_to(AFragments& left, const float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) left[i / 4][i % 4] = rounded<T>(x[2 * i], x[2 * i + 1]);
}
// Keeps the compiler from computing what follows from the value ahead of a loop, which takes registers inside.
__device__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
// The column of an accumulator's value n, and which of the thread's two rows it belongs to.
__device__ int column_of(int n, int lane) {
  return n / 4 * 8 + lane % 4 * 2 + n % 2;
}
constexpr __device__ int which_row(int n) {
  return n / 2 % 2;
}
template <int size>
__device__ void zero(float (&sum)[size]) {
#pragma unroll
  for (float& each : sum) each = 0;
  fence_accumulators(sum);
}

// The rows of a key head of a segment, and which tiles need which.
struct Task {
  int segment, head_kv, group, rank;
  int begin_q, rows_q, begin_kv, rows_kv;
  bool causal;

  __device__ explicit Task(const ShortProblem& p) {
    const int key_head = uniform(static_cast<int>(blockIdx.x) / p.tiles());
    rank = static_cast<int>(blockIdx.x) - key_head * p.tiles();
    segment = uniform(key_head / p.heads_kv), head_kv = key_head - segment * p.heads_kv, group = p.heads_q / p.heads_kv;
    begin_q = uniform(p.cu_q[segment]), rows_q = uniform(p.cu_q[segment + 1]) - begin_q;
    begin_kv = uniform(p.cu_kv[segment]), rows_kv = uniform(p.cu_kv[segment + 1]) - begin_kv;
    causal = p.causal;
  }
  __device__ int tiles_q() const { return (rows_q + tile_rows - 1) / tile_rows; }
  __device__ int tiles_kv() const { return (rows_kv + tile_rows - 1) / tile_rows; }
  __device__ int visible_keys(int row) const {
    return causal ? min(max(row + rows_kv - rows_q + 1, 0), rows_kv) : rows_kv;
  }
  // Tiles of keys that this block's queries need, and the first tile of queries that needs its keys.
  __device__ int key_tiles() const {
    return rank < tiles_q() ? (visible_keys(min((rank + 1) * tile_rows, rows_q) - 1) + tile_rows - 1) / tile_rows : 0;
  }
  __device__ int first_query_tile() const {
    return rank >= tiles_kv() ? tiles_q()
           : causal           ? min(max(rank * tile_rows - (rows_kv - rows_q), 0) / tile_rows, tiles_q())
                              : 0;
  }
};

__device__ void bulk_load(void* to, const void* from, unsigned bytes, Barrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}

// Which slots the pairs of tiles come through. One pair stays while others pass through the two other slots, and the
// one that stays next is loaded while the last of them is in use.
struct SlotOrder {
  int staying = 2, next = 0, last = 1;
  unsigned uses = 0; // a bit per slot: the parity of its next use

  __device__ int stay() {
    const int slot = next;
    next = staying, staying = slot;
    return slot;
  }
  __device__ int pass() {
    const int slot = next;
    next = last, last = slot;
    return slot;
  }
  __device__ unsigned use(int slot) {
    const unsigned parity = uses >> slot & 1;
    uses ^= 1u << slot;
    return parity;
  }
};

template <class T>
class Block {
 public:
  __device__ Block(Shared& shared, const BackwardProblem& problem) : s_(shared), all_(problem), p_(problem.call) {}

  __device__ void run() {
    const bool is_producer = threadIdx.x == warpgroup_threads;
    if (is_producer) {
      for (Barrier& each : s_.full) each.init(1);
      for (Barrier& each : s_.empty) each.init(warpgroup_warps);
      Barrier::fence_init();
    }
    __syncthreads();
    if (warp_index() < warpgroup_warps) {
      setmaxnreg_inc<consumer_registers>();
      compute_d_q(Task(p_));
      compute_d_k_and_d_v();
    } else {
      setmaxnreg_dec<producer_registers>();
      if (is_producer) load_pairs();
    }
  }

 private:
  // Calls body(is_of_queries, stays, head of the group, tile) for all pairs of tiles in the order of their use.
  template <class Body>
  __device__ static void for_each_pair(const Task& task, const Body& body) {
    const int key_tiles = task.key_tiles(), first = task.first_query_tile(), end = task.tiles_q();
    if (key_tiles > 0) {
#pragma unroll 1
      for (int head = 0; head < task.group; ++head) {
        body(true, true, head, task.rank);
#pragma unroll 1
        for (int tile = 0; tile < key_tiles; ++tile) body(false, false, 0, tile);
      }
    }
    if (first >= end) return;
    body(false, true, 0, task.rank);
#pragma unroll 1
    for (int head = 0; head < task.group; ++head)
#pragma unroll 1
      for (int tile = first; tile < end; ++tile) body(true, false, head, tile);
  }

  __device__ void load_pairs() {
    const Task task(p_);
    int count = 0;
    wait_for_previous_kernel();
    for_each_pair(task, [&](bool is_of_queries, bool stays, int head, int tile) {
      const int slot = stays ? order_.stay() : order_.pass();
      const unsigned parity = order_.use(slot);
      if (count++ >= slots) s_.empty[slot].wait(parity ^ 1); // the first ones have a slot each
      load_pair(task, slot, is_of_queries, is_of_queries ? task.head_kv * task.group + head : task.head_kv, tile);
    });
  }
  __device__ void load_pair(const Task& task, int slot, bool is_of_queries, int head, int tile) {
    Shared::Pair& pair = s_.pairs[slot];
    Barrier& full = s_.full[slot];
    const CUtensorMap &one = is_of_queries ? all_.q : all_.k, &other = is_of_queries ? all_.d_out : all_.v;
    const int row = (is_of_queries ? task.begin_q : task.begin_kv) + tile * tile_rows;
    full.arrive_and_expect_tx(2 * tile_bytes + (is_of_queries ? sizeof(Statistics) : 0));
    if (is_of_queries)
      bulk_load(&s_.statistics[slot], &p_.statistics_of(task.segment, head, tile), sizeof(Statistics), full);
#pragma unroll
    for (int half = 0; half < 2; ++half) tma_load(pair.one + half * half_bytes, one, half * box_width, head, row, full);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      tma_load(pair.other + half * half_bytes, other, half * box_width, head, row, full);
  }

  // The next pair of tiles. Of those that pass through, rows at and past `rows` are zeroed: they belong to others, and
  // get probability 0, but must be finite.
  __device__ int take_staying() {
    const int slot = uniform(order_.stay());
    s_.full[slot].wait(order_.use(slot));
    return slot;
  }
  __device__ int take_passing(int rows) {
    const int slot = uniform(order_.pass());
    s_.full[slot].wait(order_.use(slot));
    if (rows < tile_rows) {
      auto* words = reinterpret_cast<uint4*>(&s_.pairs[slot]);
      constexpr int row_words = box_row_bytes / 16, half_words = half_bytes / 16;
      const int count = (tile_rows - rows) * row_words;
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x); i < count; i += warpgroup_threads)
#pragma unroll
        for (int half = 0; half < 4; ++half) words[half * half_words + rows * row_words + i] = {};
      fence_proxy_async();
      asm volatile("bar.sync 1, %0;" ::"n"(warpgroup_threads) : "memory");
    }
    return slot;
  }
  __device__ void release(int slot) {
    __syncwarp();
    if (lane_index() == 0) s_.empty[slot].arrive();
  }

  // sum = a b^T over head_dim, of two tiles.
  __device__ static void multiply_tiles(float (&sum)[32], std::uint64_t a, std::uint64_t b) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step) {
      const unsigned bytes = step / 4 * half_bytes + step % 4 * step_bytes;
      wgmma<T, false>(sum, advance_descriptor(a, bytes), advance_descriptor(b, bytes), step > 0);
    }
    wgmma_commit();
  }
  // sum += a tile, whose rows are the summed dimension.
  __device__ static void add_product(float (&sum)[64], const AFragments& a, std::uint64_t tile) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < tile_rows / 16; ++step)
      wgmma<T, true>(sum, a[step], advance_descriptor(tile, step * mn_step_bytes), true);
    wgmma_commit();
  }
  __device__ std::uint64_t one(int slot) const {
    return matrix_descriptor(s_.pairs[slot].one, half_bytes);
  }
  __device__ std::uint64_t other(int slot) const {
    return matrix_descriptor(s_.pairs[slot].other, half_bytes);
  }

  __device__ void compute_d_q(const Task& task) {
    const int key_tiles = task.key_tiles(), rank = task.rank;
    if (rank >= task.tiles_q()) return;
    const int lane = opaque(lane_index()), row = rank * tile_rows + warp_index() * 16 + lane / 4;
    const int visible_keys[2] = {task.visible_keys(row), task.visible_keys(row + 8)},
              visible_to_all = task.visible_keys(rank * tile_rows);
#pragma unroll 1
    for (int head = 0; head < task.group; ++head) {
      float d_q[64];
      zero(d_q);
      if (key_tiles > 0) {
        const int queries = take_staying(), row_of_tile = row - rank * tile_rows;
        const Statistics& statistics = s_.statistics[queries];
        const float row_lse[2] = {statistics.row_lse[row_of_tile], statistics.row_lse[row_of_tile + 8]},
                    delta[2] = {statistics.delta[row_of_tile], statistics.delta[row_of_tile + 8]};
        int former = -1;
#pragma unroll 1
        for (int tile = 0; tile < key_tiles; ++tile) {
          const int keys = take_passing(task.rows_kv - tile * tile_rows);
          float weights[32], d_scores[32];
          multiply_tiles(weights, one(queries), one(keys));
          multiply_tiles(d_scores, other(queries), other(keys));
          wgmma_wait<1>();
          fence_accumulators(weights);
          if (former >= 0) release(former);
          former = keys;
#pragma unroll
          for (int n = 0; n < 32; ++n) weights[n] = exp2_approx(weights[n] * p_.scale_log2 - row_lse[which_row(n)]);
          if ((tile + 1) * tile_rows > visible_to_all) {
#pragma unroll
            for (int n = 0; n < 32; ++n)
              if (tile * tile_rows + column_of(n, lane) >= visible_keys[which_row(n)]) weights[n] = 0;
          }
          wgmma_wait<0>();
          fence_accumulators(d_scores);
#pragma unroll
          for (int n = 0; n < 32; ++n) d_scores[n] = weights[n] * (d_scores[n] - delta[which_row(n)]);
          AFragments fragments;
          round_to<T>(fragments, d_scores);
          add_product(d_q, fragments, one(keys));
        }
        wgmma_wait<0>();
        fence_accumulators(d_q);
        release(former);
        release(queries);
      }
      store(p_.d_q, task.begin_q, task.rows_q, rank, task.head_kv * task.group + head, d_q, p_.scale);
    }
  }

  __device__ void compute_d_k_and_d_v() {
    float d_k[64], d_v[64];
    zero(d_k);
    zero(d_v);
    sum_d_k_and_d_v(Task(p_), d_k, d_v);
    const Task task(p_); // again, to have no registers for it in between
    if (task.rank >= task.tiles_kv()) return;
    store(p_.d_k, task.begin_kv, task.rows_kv, task.rank, task.head_kv, d_k, p_.scale);
    store(p_.d_v, task.begin_kv, task.rows_kv, task.rank, task.head_kv, d_v, 1);
  }
  __device__ void sum_d_k_and_d_v(const Task& task, float (&d_k)[64], float (&d_v)[64]) {
    const int first = task.first_query_tile(), end = task.tiles_q(), rows_q = task.rows_q;
    if (first >= end) return;
    // The first query that attends to this thread's key, and the last one that does not attend to all keys.
    const int lane = opaque(lane_index()), shift = task.causal ? task.rows_kv - rows_q : 2 * max_short_rows,
              first_query = task.rank * tile_rows + warp_index() * 16 + lane / 4 - shift,
              last_cut = (task.rank + 1) * tile_rows - 2 - shift;
    const int staying = take_staying();
    int tile = first;
#pragma unroll 1
    for (int left = task.group * (end - first); left > 0; --left) {
      // Broadcast anew, or the descriptors of all steps are kept in registers, which there are not enough of.
      const int keys = uniform(staying), queries = take_passing(rows_q - tile * tile_rows);
      const Statistics& statistics = s_.statistics[queries];
      float weights[32], d_scores[32];
      multiply_tiles(weights, one(keys), one(queries));
      multiply_tiles(d_scores, other(keys), other(queries));
      wgmma_wait<1>();
      fence_accumulators(weights);
#pragma unroll
      for (int n = 0; n < 32; ++n)
        weights[n] = exp2_approx(weights[n] * p_.scale_log2 - statistics.row_lse[column_of(n, lane)]);
      // Only what the diagonal cuts: rows of keys that do not exist are not stored.
      if (tile * tile_rows <= last_cut) {
#pragma unroll
        for (int n = 0; n < 32; ++n)
          if (tile * tile_rows + column_of(n, lane) < first_query + 8 * which_row(n)) weights[n] = 0;
      }
      wgmma_wait<0>();
      fence_accumulators(d_scores);
      AFragments by_weights, by_scores;
      round_to<T>(by_weights, weights);
#pragma unroll
      for (int n = 0; n < 32; ++n)
        d_scores[n] =
            widened<T>(by_weights[n / 8][n % 8 / 2], n % 2) * (d_scores[n] - statistics.delta[column_of(n, lane)]);
      add_product(d_v, by_weights, other(queries));
      round_to<T>(by_scores, d_scores);
      add_product(d_k, by_scores, one(queries));
      wgmma_wait<0>();
      fence_accumulators(d_k);
      fence_accumulators(d_v);
      release(queries);
      if (++tile == end) tile = first;
    }
  }

  // Stores this block's tile of a head, 16 rows a warp, through shared memory that only the warp uses.
  __device__ void store(const HeadTensor& to, int begin, int rows, int rank, int head, const float (&sum)[64],
                        float factor) {
    char* staging = s_.staging[warp_index()];
    const int lane = opaque(lane_index()), first = rank * tile_rows + warp_index() * 16;
    const std::uint32_t matrices =
        shared_address(staging) + static_cast<std::uint32_t>(lane % 16 * box_row_bytes + ((lane / 16 ^ lane % 8) << 4));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (unsigned step = 0; step < 4; ++step) {
        const float* x = sum + half * 32 + step * 8;
        Matrix8x8x4{{rounded<T>(x[0] * factor, x[1] * factor), rounded<T>(x[2] * factor, x[3] * factor),
                     rounded<T>(x[4] * factor, x[5] * factor), rounded<T>(x[6] * factor, x[7] * factor)}}
            .store(matrices ^ step << 5);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        const int row = i + lane / 8;
        if (first + row < rows)
          *reinterpret_cast<uint4*>(row_of<T>(to, begin + first + row, head) + half * box_width + lane % 8 * 8) =
              *reinterpret_cast<const uint4*>(staging + row * box_row_bytes + ((lane % 8 ^ row % 8) << 4));
      }
      __syncwarp();
    }
  }

  Shared& s_;
  const BackwardProblem& all_;
  const ShortProblem& p_;
  SlotOrder order_;
};

#endif

template <class T>
__global__ void __launch_bounds__(block_threads, 2) short_backward_kernel(const __grid_constant__ BackwardProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  Block<T>(*reinterpret_cast<Shared*>(memory), p).run();
#endif
}

// Boxes of 64 rows and 64 columns of one head.
CUtensorMap tensor_map(fvlm_dtype dtype, const HeadTensor& rows, std::int64_t tokens, int heads) {
  return TensorMapShape{tensor_map_type(dtype),
                        3,
                        {head_dim, static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(tokens)},
                        {static_cast<cuuint64_t>(rows.head_stride) * 2, static_cast<cuuint64_t>(rows.row_stride) * 2},
                        {box_width, 1, tile_rows}}
      .encode(rows.data);
}

} // namespace

std::int64_t statistics_bytes(const ShortBackwardProblem& p) {
  return std::int64_t{p.segments} * p.heads_q * ShortProblem{p, 0, nullptr}.tiles() * std::int64_t{sizeof(Statistics)};
}

void short_backward(const fvlm_call& call, fvlm_dtype dtype, const ShortBackwardProblem& p, void* statistics) {
  const BackwardProblem problem{{p, p.scale * log2_e, static_cast<Statistics*>(statistics)},
                                tensor_map(dtype, p.q, p.tokens_q, p.heads_q),
                                tensor_map(dtype, p.k, p.tokens_kv, p.heads_kv),
                                tensor_map(dtype, p.v, p.tokens_kv, p.heads_kv),
                                tensor_map(dtype, p.d_out, p.tokens_q, p.heads_q)};
  compute_statistics(call, dtype, problem.call);
  cudaLaunchAttribute starts_early = may_start_early();
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(p.segments * p.heads_kv * problem.call.tiles());
  config.blockDim = block_threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = sdk::stream_of(call);
  config.attrs = &starts_early;
  config.numAttrs = 1;
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    auto* kernel = short_backward_kernel<typename decltype(element)::type>;
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                    "cudaFuncSetAttribute");
    sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, problem), "launch");
  });
}

} // namespace fvlm::plugins
