// gradients.cu: d_hidden and d_weight of a chunk in one launch, for Hopper: bfloat16, d_weight in float32, width below
// 1,536.
//
// Tiles of 128 x 192. One consumer warpgroup computes tiles of d_weight and stores them (or adds them by TMA reduction)
// while the other uses the tensor cores to accumulate a tile of d_hidden over the vocabulary; a ping-pong barrier
// alternates them. A producer thread loads chunks of 64 by TMA, five stages deep, and the two blocks of a cluster load
// the shared operand for each other by multicast. Clusters split the vocabulary and stay close together in it, so
// exponentials are read from memory once. A second launch adds the partial sums of d_hidden.
//
// Measured on an H200 for width 576 and a vocabulary of 49,152 (bench/LOG.md, 2026-11-23), the whole loss: 1,020 rows
// 311.0 us (343.4 accumulating into d_weight) instead of 364.0 (417.1) with cuBLASLt's products; 8,160 rows 2,906
// instead of 3,332 us.
#include "common/cuda_tensor_map.h"
#include "common/cuda_wgmma_wide.cuh"
#include "gradients.h"
#include "ping_pong.cuh"

namespace fvlm::plugins {
namespace {

using namespace hopper;
using std::int64_t;

constexpr int tile_rows = 128, tile_columns = 192, depth = 64; // of a tile, and the inner size of a pipeline stage
constexpr int halves = 2, box_bytes = depth * box_row_bytes, right_boxes = tile_columns / box_width;
constexpr int left_bytes = halves * box_bytes, right_bytes = right_boxes * box_bytes;
constexpr int out_rows = 16, out_bytes = out_rows * box_row_bytes;
constexpr int out_stages = 2; // output boxes that a warp alternates between
constexpr int tile_fours = tile_rows * tile_columns / 4;
constexpr int words_per_cluster = cluster_blocks * tile_rows; // of a cluster's two tiles of d_weight

struct Problem {
  CUtensorMap exponentials, weight, scaled_hidden, d_weight;
  float4* parts; // [part, pair of tiles, block, float4 of a thread, thread]
  int row_pairs, column_tiles, word_pairs, splits;
  int row_chunks; // chunks that a tile of d_weight sums over
  bool accumulate;
};

struct alignas(8 * box_row_bytes) Shared {
  char left[stages][left_bytes];
  char right[stages][right_bytes];
  char out[warpgroup_warps][out_stages][out_bytes];
  PingPong ping_pong;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

constexpr int out_columns = box_row_bytes / 4;
using TileAccumulator = Accumulator<tile_columns>;

// The work of a cluster: in each step two tiles of d_weight, and then a part of the sums of its tiles of d_hidden. The
// vocabulary is processed from its end, whose exponentials may still be in the L2.
struct ClusterWork {
  int row_pair, column, split, splits, pairs; // pairs: of word tiles that belong to this split
  int steps, row_chunks, row_pairs;
  unsigned rank = cluster_rank();

  __device__ explicit ClusterWork(const Problem& p)
      : splits(p.splits), row_chunks(p.row_chunks), row_pairs(p.row_pairs) {
    const int cluster = static_cast<int>(blockIdx.x) / cluster_blocks, tiles = p.row_pairs * p.column_tiles,
              tile = cluster % tiles;
    split = cluster / tiles, row_pair = tile / p.column_tiles, column = tile % p.column_tiles * tile_columns;
    pairs = (p.word_pairs - split + splits - 1) / splits;
    steps = (pairs + row_pairs - 1) / row_pairs;
  }
  __device__ int row() const { return (row_pair * cluster_blocks + static_cast<int>(rank)) * tile_rows; }
  // The first chunk of d_hidden's sums in a step; and the word that a chunk starts with.
  __device__ int chunk(int step) const { return pairs * chunks_of_pair * step / steps; }
  __device__ int word_of(int chunk) const {
    return first_word(chunk / chunks_of_pair) + chunk % chunks_of_pair * depth;
  }
  // Number of chunks for the step's tiles of d_weight, if it has any; and the first word of this block's tile.
  __device__ int chunks_of_words(int step) const { return pair(step) < pairs ? row_chunks : 0; }
  __device__ int word(int step) const { return first_word(pair(step)) + static_cast<int>(rank) * tile_rows; }

 private:
  static constexpr int chunks_of_pair = words_per_cluster / depth;

  __device__ int pair(int step) const { return step * row_pairs + row_pair; }
  __device__ int first_word(int pair) const { return (split + (pairs - 1 - pair) * splits) * words_per_cluster; }
};

struct Producer {
  Shared& s;
  const ClusterWork& work;
  unsigned count = 0;

  // to_column, to_row: offset of the left operand's second box.
  __device__ void load_chunk(const CUtensorMap& left, int left_column, int left_row, int to_column, int to_row,
                             const CUtensorMap& right, int right_row) {
    constexpr int rows = depth / cluster_blocks; // of the right operand: each block loads these for both
    const Stage stage(count++);
    const int first = static_cast<int>(work.rank) * rows;
    char* to_left = s.left[stage.index];
    char* to_right = s.right[stage.index] + first * box_row_bytes;
    Barrier& full = s.ping_pong.full[stage.index];
    s.ping_pong.empty[stage.index].wait(stage.parity ^ 1);
    full.arrive_and_expect_tx(left_bytes + right_bytes);
    for (int i = 0; i < halves; ++i)
      tma_load(to_left + i * box_bytes, left, left_column + i * to_column, left_row + i * to_row, full);
    for (int i = 0; i < right_boxes; ++i)
      tma_load(to_right + i * box_bytes, right, work.column + i * box_width, right_row + first, full,
               (1u << cluster_blocks) - 1);
  }
};

__device__ inline void run_producer(Shared& s, const Problem& p, const ClusterWork& work) {
  Producer producer{s, work};
  for (int step = 0; step < work.steps; ++step) {
    for (int chunk = 0; chunk < work.chunks_of_words(step); ++chunk)
      producer.load_chunk(p.exponentials, work.word(step), chunk * depth, box_width, 0, p.scaled_hidden, chunk * depth);
    for (int chunk = work.chunk(step); chunk < work.chunk(step + 1); ++chunk)
      producer.load_chunk(p.exponentials, work.word_of(chunk), work.row(), 0, box_width, p.weight, work.word_of(chunk));
  }
}

// The products of a consumer warpgroup: d_weight for the first, d_hidden for the second.
template <int group>
struct ConsumerGemm {
  Shared& s;
  std::uint64_t left = matrix_descriptor(s.left), right = matrix_descriptor(s.right, box_bytes);

  // Adds the products of chunks [first, end), at least one, to `sum`; overwrites it unless `adds`.
  __device__ void multiply(TileAccumulator (&sum)[halves], unsigned first, unsigned end, bool adds) const {
    multiply_chunk(sum, first, adds);
    for (unsigned count = first + 1; count < end; ++count) {
      multiply_chunk(sum, count, true);
      wgmma_wait<1>();
      s.ping_pong.release(count - 1);
    }
    s.ping_pong.hand_over(group);
    wgmma_wait<0>();
    s.ping_pong.release(end - 1);
  }

 private:
  __device__ void multiply_chunk(TileAccumulator (&sum)[halves], unsigned count, bool adds) const {
    constexpr unsigned step = 16; // inner size of one wgmma
    const Stage stage(count);
    const std::uint64_t chunk_left = advance_descriptor(left, stage.index * left_bytes),
                        chunk_right = advance_descriptor(right, stage.index * right_bytes);
    s.ping_pong.full[stage.index].wait(stage.parity);
    wgmma_fence();
#pragma unroll
    for (unsigned at = 0; at < depth; at += step)
#pragma unroll
      for (unsigned half = 0; half < halves; ++half) {
        const std::uint64_t a_descriptor = advance_descriptor(chunk_left, half * box_bytes),
                            b_descriptor = advance_descriptor(chunk_right, at * box_row_bytes);
        if constexpr (group == 0)
          wgmma_mn_major<BFloat16, tile_columns>(sum[half], advance_descriptor(a_descriptor, at * box_row_bytes),
                                                 b_descriptor, adds || at > 0);
        else
          hopper::wgmma<BFloat16, true>(sum[half], advance_descriptor(a_descriptor, at * 2), b_descriptor,
                                        adds || at > 0);
      }
    wgmma_commit();
  }
};

__device__ inline void compute_d_hidden(Shared& s, const Problem& p, const ClusterWork& work) {
  const ConsumerGemm<1> gemm{s};
  TileAccumulator sum[halves];
  unsigned count = 0;
  for (int step = 0; step < work.steps; ++step) {
    count += static_cast<unsigned>(work.chunks_of_words(step));
    const auto chunks = static_cast<unsigned>(work.chunk(step + 1) - work.chunk(step));
    s.ping_pong.wait(1, step);
    gemm.multiply(sum, count, count + chunks, step > 0);
    count += chunks;
  }
  float4* to = p.parts + static_cast<int64_t>(blockIdx.x) * tile_fours + threadIdx.x % warpgroup_threads;
#pragma unroll
  for (int half = 0; half < halves; ++half)
#pragma unroll
    for (int i = 0; i < tile_columns / 2; i += 4, to += warpgroup_threads)
      *to = make_float4(sum[half][i], sum[half][i + 1], sum[half][i + 2], sum[half][i + 3]);
}

// Stores the warp's 16 rows of both halves, box by box.
__device__ inline void store(const TileAccumulator (&sum)[halves], Shared& s, const Problem& p, int column, int word) {
  constexpr int boxes = tile_columns / out_columns;
  const unsigned lane = threadIdx.x % warp_size, row = lane / 4, its_warp = threadIdx.x / warp_size % warpgroup_warps;
  const bool is_leader = lane == 0;
#pragma unroll
  for (int half = 0; half < halves; ++half)
#pragma unroll
    for (int box = 0; box < boxes; ++box) {
      char* out = s.out[its_warp][box % out_stages];
      if (is_leader) tma_store_wait_read<out_stages - 1>();
      __syncwarp();
#pragma unroll
      for (unsigned eight = 0; eight < out_columns / 8; ++eight)
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
          const int at = box * (out_columns / 2) + static_cast<int>(eight * 4 + i * 2);
          const unsigned pack_index = (2 * eight + lane % 4 / 2) ^ row;
          *reinterpret_cast<float2*>(out + (row + 8 * i) * box_row_bytes + pack_index * 16 + lane % 2 * 8) =
              make_float2(sum[half][at], sum[half][at + 1]);
        }
      fence_proxy_async();
      __syncwarp();
      if (!is_leader) continue;
      const int out_row = word + half * box_width + static_cast<int>(its_warp) * out_rows;
      if (p.accumulate)
        tma_reduce_add(p.d_weight, column + box * out_columns, out_row, out);
      else
        tma_store(p.d_weight, column + box * out_columns, out_row, out);
      tma_store_commit();
    }
}

// Prefetches a tile of d_weight into the L2 before it is added to. One step earlier it would be evicted again.
__device__ inline void prefetch(const Problem& p, int column, int word) {
  constexpr int in_row = tile_columns / out_columns, all = tile_rows / out_rows * in_row;
  const int box = static_cast<int>(threadIdx.x % warpgroup_threads);
  if (box < all) tma_prefetch(p.d_weight, column + box % in_row * out_columns, word + box / in_row * out_rows);
}

__device__ inline void compute_d_weight(Shared& s, const Problem& p, const ClusterWork& work) {
  const ConsumerGemm<0> gemm{s};
  unsigned count = 0;
  for (int step = 0; step < work.steps; ++step) {
    TileAccumulator sum[halves];
    const auto chunks = static_cast<unsigned>(work.chunks_of_words(step));
    s.ping_pong.wait(0, step);
    if (chunks > 0) {
      if (p.accumulate) prefetch(p, work.column, work.word(step));
      gemm.multiply(sum, count, count + chunks, false);
      store(sum, s, p, work.column, work.word(step));
    } else {
      s.ping_pong.hand_over(0);
    }
    count += chunks + static_cast<unsigned>(work.chunk(step + 1) - work.chunk(step));
  }
  if (threadIdx.x % warp_size == 0) tma_store_wait_read<0>();
}

#endif

__global__ void FVLM_CLUSTER_OF_TWO __launch_bounds__(block_threads, 1)
    gradients_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  const ClusterWork work(p);
  s.ping_pong.begin();
  // uniform within the warp
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (group == consumer_warpgroups) {
    setmaxnreg_dec<producer_registers>();
    if (threadIdx.x % warpgroup_threads == 0) run_producer(s, p, work);
    __syncwarp();
  } else {
    setmaxnreg_inc<consumer_registers>();
    if (group == 0)
      compute_d_weight(s, p, work);
    else
      compute_d_hidden(s, p, work);
  }
  cluster_sync(); // no block may exit while others still send to it
#endif
}

struct HiddenReduction {
  const float4* parts;
  const float* factors;
  BFloat16* d_hidden;
  int64_t row_stride;
  int rows, width, column_tiles, tiles, splits; // tiles: of all blocks of a split
};

// A thread adds one float4: two neighbouring columns of a row and of the row 8 further on.
__global__ void __launch_bounds__(warpgroup_threads) reduce_d_hidden(const HiddenReduction h) {
  const int quad = static_cast<int>(blockIdx.x), tile = static_cast<int>(blockIdx.y),
            thread = static_cast<int>(threadIdx.x), lane = thread % warp_size;
  constexpr int quads = tile_columns / 8; // per half
  const int pair = tile / cluster_blocks,
            row = (pair / h.column_tiles * cluster_blocks + tile % cluster_blocks) * tile_rows +
                  quad / quads * (tile_rows / halves) + thread / warp_size * 16 + lane / 4,
            column = pair % h.column_tiles * tile_columns + quad % quads * 8 + lane % 4 * 2;
  if (row >= h.rows || column >= h.width) return;
  const float4* from = h.parts + (static_cast<int64_t>(tile) * quads * halves + quad) * warpgroup_threads + thread;
  float4 sum{};
#pragma unroll 4
  for (int i = 0; i < h.splits; ++i) {
    const float4 part = __ldcg(from + static_cast<int64_t>(i) * h.tiles * tile_fours);
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }
  const float factor = h.factors[row];
  write(h.d_hidden + row * h.row_stride + column, {sum.x * factor, sum.y * factor});
  if (row + 8 < h.rows) {
    const float next = h.factors[row + 8];
    write(h.d_hidden + (row + 8) * h.row_stride + column, {sum.z * next, sum.w * next});
  }
}

int divide_up(int64_t size, int64_t by) {
  return static_cast<int>((size + by - 1) / by);
}

// How the work is divided.
struct WorkSplit {
  int row_pairs, column_tiles, word_pairs, splits;

  WorkSplit(int multiprocessors, const GradientsShape& shape)
      : row_pairs(divide_up(shape.rows, cluster_blocks * tile_rows)),
        column_tiles(divide_up(shape.width, tile_columns)), word_pairs(divide_up(shape.vocab, words_per_cluster)),
        splits(std::min(multiprocessors / cluster_blocks / clusters_of_split(), word_pairs)) {}
  int clusters_of_split() const { return row_pairs * column_tiles; }
};

} // namespace

bool fused_gradients_support(int multiprocessors, const GradientsShape& shape) {
  const WorkSplit split(multiprocessors, shape);
  return split.splits > 0 && // ClusterWork multiplies chunks by steps in 32 bits
         int64_t{split.word_pairs} * split.word_pairs * (words_per_cluster / depth) <= INT32_MAX;
}

int64_t fused_gradients_workspace(int multiprocessors) {
  return int64_t{multiprocessors} * tile_fours * static_cast<int64_t>(sizeof(float4));
}

void fused_gradients(const Device& device, const GradientsShape& shape, const FusedGradients& o, void* parts) {
  const WorkSplit split(device.multiprocessors, shape);
  Problem p{};
  p.exponentials =
      make_tensor_map(sdk::bfloat16, o.exponentials.data, o.exponentials.row_stride, shape.rows, shape.vocab, depth);
  p.weight = make_tensor_map(sdk::bfloat16, o.weight.data, o.weight.row_stride, shape.vocab, shape.width,
                             depth / cluster_blocks);
  p.scaled_hidden = make_tensor_map(sdk::bfloat16, o.scaled_hidden.data, o.scaled_hidden.row_stride, shape.rows,
                                    shape.width, depth / cluster_blocks);
  p.d_weight =
      make_tensor_map(sdk::float32, o.d_weight.data, o.d_weight.row_stride, shape.vocab, shape.width, out_rows);
  p.parts = static_cast<float4*>(parts);
  p.row_pairs = split.row_pairs, p.column_tiles = split.column_tiles, p.word_pairs = split.word_pairs,
  p.splits = split.splits;
  p.row_chunks = divide_up(shape.rows, depth);
  p.accumulate = o.accumulate;
  constexpr int bytes = sizeof(Shared) + alignof(Shared);
  const int tiles = split.clusters_of_split() * cluster_blocks;
  sdk::check_cuda(cudaFuncSetAttribute(gradients_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "shared memory");
  gradients_kernel<<<static_cast<unsigned>(tiles * split.splits), block_threads, bytes, device.stream>>>(p);
  sdk::check_cuda(cudaGetLastError(), "launch");
  const HiddenReduction hidden{p.parts,
                               o.factors,
                               static_cast<BFloat16*>(o.d_hidden.data),
                               o.d_hidden.row_stride,
                               static_cast<int>(shape.rows),
                               static_cast<int>(shape.width),
                               split.column_tiles,
                               tiles,
                               split.splits};
  const dim3 grid(tile_fours / warpgroup_threads, static_cast<unsigned>(tiles));
  reduce_d_hidden<<<grid, warpgroup_threads, 0, device.stream>>>(hidden);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
