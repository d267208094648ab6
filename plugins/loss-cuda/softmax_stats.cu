// softmax_stats.cu: the product of hidden states and the head's weight with exponentials and row sums in the epilogue,
// for Hopper and bfloat16.
//
// Tiles of 128 tokens x 192 words. Two consumer warpgroups alternate: one computes exponentials while the other uses
// the tensor cores (ping-pong). A producer thread loads chunks by TMA, five stages deep. The two blocks of a cluster
// have tiles of the same words or of the same tokens, and load the shared operand for each other by multicast, half
// each.
//
// Measured on an H100 for 512 tokens, width 576 and a vocabulary of 49,152 (bench/LOG.md, 2026-11-22): 54.9 us, where
// cuBLASLt takes 51.1 us for the logits alone.
#include "common/cuda_math.cuh"
#include "common/cuda_tensor_map.h"
#include "ping_pong.cuh"
#include "softcap.cuh"
#include "softmax_stats.h"

namespace fvlm::plugins {
namespace {

using namespace hopper;
using std::int64_t;

constexpr int tile_rows = 128, tile_columns = 192;
constexpr int left_bytes = tile_rows * box_row_bytes, right_bytes = tile_columns * box_row_bytes;
constexpr int consumer_warps = consumer_warpgroups * warpgroup_warps;
constexpr int box_rows = 16, box_bytes = box_rows * box_row_bytes; // of what a warp stores

struct Problem {
  CUtensorMap left, right, out;
  const float* shifts;
  float* parts;
  int rows, vocab, row_steps, column_steps, chunks; // steps: tiles, or pairs of tiles if two blocks have one each
  bool stores;
  Softcap softcap;
};

struct alignas(8 * box_row_bytes) Shared {
  char left[stages][left_bytes];
  char right[stages][right_bytes];
  char out[consumer_warps][box_bytes];
  PingPong ping_pong;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

constexpr int halves = 2, column_boxes = tile_columns / box_width; // of a tile
using TileAccumulator = Accumulator<tile_columns>;

// The tiles of a block: some of those in one row of tiles.
template <bool shares_columns>
struct BlockTiles {
  int row, part;        // its first row; and its index in the partial sums
  int first, step, end; // steps over columns
  unsigned rank = cluster_rank();

  __device__ explicit BlockTiles(const Problem& p) {
    const int cluster = static_cast<int>(blockIdx.x) / cluster_blocks, its_rank = static_cast<int>(rank);
    const int row_turn = cluster % p.row_steps;
    first = cluster / p.row_steps, step = static_cast<int>(gridDim.x) / cluster_blocks / p.row_steps,
    end = p.column_steps;
    row = (shares_columns ? row_turn * cluster_blocks + its_rank : row_turn) * tile_rows;
    part = shares_columns ? first : first * cluster_blocks + its_rank;
  }
  __device__ int column(int step_index) const {
    return (shares_columns ? step_index : step_index * cluster_blocks + static_cast<int>(rank)) * tile_columns;
  }
};

template <bool shares_columns>
__device__ void run_producer(Shared& s, const Problem& p, const BlockTiles<shares_columns>& tiles) {
  constexpr unsigned both = (1 << cluster_blocks) - 1;
  const int rank = static_cast<int>(tiles.rank);
  unsigned count = 0;
  for (int step_index = tiles.first; step_index < tiles.end; step_index += tiles.step)
    for (int at = 0; at < p.chunks * box_width; at += box_width, ++count) {
      const Stage stage(count);
      char *left = s.left[stage.index], *right = s.right[stage.index];
      Barrier& full = s.ping_pong.full[stage.index];
      s.ping_pong.empty[stage.index].wait(stage.parity ^ 1);
      full.arrive_and_expect_tx(left_bytes + right_bytes);
      if constexpr (shares_columns) {
        tma_load(left, p.left, at, tiles.row, full);
        tma_load(right + rank * right_bytes / cluster_blocks, p.right, at,
                 tiles.column(step_index) + rank * tile_columns / cluster_blocks, full, both);
      } else {
        tma_load(right, p.right, at, tiles.column(step_index), full);
        tma_load(left + rank * left_bytes / cluster_blocks, p.left, at, tiles.row + rank * tile_rows / cluster_blocks,
                 full, both);
      }
    }
}

// Computes the product of the warpgroup's tile number `step_index`.
__device__ void multiply_tile(TileAccumulator (&sum)[halves], Shared& s, int chunks, int group, int step_index) {
  constexpr unsigned depth = 16, steps = box_width / depth; // of one wgmma
  const std::uint64_t left = matrix_descriptor(s.left), right = matrix_descriptor(s.right);
  const unsigned first = static_cast<unsigned>((consumer_warpgroups * step_index + group) * chunks),
                 last = first + static_cast<unsigned>(chunks) - 1;
  s.ping_pong.wait(group, step_index);
  for (unsigned chunk = first; chunk <= last; ++chunk) {
    const Stage stage(chunk);
    s.ping_pong.full[stage.index].wait(stage.parity);
    const std::uint64_t a_descriptor = advance_descriptor(left, stage.index * left_bytes),
                        b_descriptor = advance_descriptor(right, stage.index * right_bytes);
    wgmma_fence();
#pragma unroll
    for (unsigned step = 0; step < steps; ++step)
#pragma unroll
      for (unsigned half = 0; half < halves; ++half)
        wgmma<BFloat16, false>(sum[half],
                               advance_descriptor(a_descriptor, half * left_bytes / halves + step * depth * 2),
                               advance_descriptor(b_descriptor, step * depth * 2), chunk > first || step > 0);
    wgmma_commit();
    if (chunk == last) s.ping_pong.hand_over(group);
    if (chunk == first) continue;
    wgmma_wait<1>();
    s.ping_pong.release(chunk - 1);
  }
  wgmma_wait<0>();
  s.ping_pong.release(last);
}

// The epilogue of a warp: 16 rows of each half of a tile. capped: the logits are bounded.
template <bool capped>
struct TileEpilogue {
  const Problem& p;
  Shared& s;
  int row; // the thread's first row; its others are 8 and half a tile further on
  bool is_leader = threadIdx.x % warp_size == 0;
  float shifts[halves][2], sums[halves][2] = {};

  __device__ TileEpilogue(const Problem& problem, Shared& shared, int first_row)
      : p(problem), s(shared),
        row(first_row + warp_in_group() * box_rows + static_cast<int>(threadIdx.x) % warp_size / 4) {
#pragma unroll
    for (int half = 0; half < halves; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) shifts[half][i] = row_of(half, i) < p.rows ? p.shifts[row_of(half, i)] : INFINITY;
  }

  // edge: number of columns of the tile that exist.
  __device__ void finish(const TileAccumulator (&sum)[halves], int first_row, int column) {
    const int edge = p.vocab - column;
#pragma unroll
    for (int half = 0; half < halves; ++half) {
      const bool has_target[2] = {shifts[half][0] != INFINITY, shifts[half][1] != INFINITY};
#pragma unroll
      for (int box = 0; box < column_boxes; ++box) {
        char* to = s.out[threadIdx.x / warp_size];
        if (is_leader) tma_store_wait_read<0>();
        __syncwarp();
#pragma unroll
        for (int pair = 0; pair < box_width / 16; ++pair)
          finish(sum[half], half, box * box_width + pair * 16, edge, has_target, matrix_address(to, pair));
        fence_proxy_async();
        __syncwarp();
        if (!is_leader || !p.stores) continue;
        tma_store(p.out, column + box * box_width, first_row + half * tile_rows / halves + warp_in_group() * box_rows,
                  to);
        tma_store_commit();
      }
    }
  }
  __device__ void end(int part) {
    if (is_leader) tma_store_wait_read<0>();
#pragma unroll
    for (int half = 0; half < halves; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = sums[half][i];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (threadIdx.x % 4 == 0 && row_of(half, i) < p.rows)
          p.parts[static_cast<int64_t>(part) * p.rows + row_of(half, i)] = sum;
      }
  }

 private:
  __device__ static int warp_in_group() {
    return static_cast<int>(threadIdx.x) / warp_size % warpgroup_warps;
  }
  // The address that this lane passes to stmatrix for columns 16 pair to 16 pair + 15 of a box.
  __device__ static std::uint32_t matrix_address(const char* box, int pair) {
    const unsigned lane = threadIdx.x % warp_size, box_row = lane % box_rows, pack = lane / box_rows;
    return shared_address(box) + box_row * box_row_bytes +
           (((2 * static_cast<unsigned>(pair) + pack) ^ box_row % 8) << 4);
  }
  __device__ int row_of(int half, int i) const {
    return row + half * tile_rows / halves + i * 8;
  }
  __device__ void finish(const TileAccumulator& sum, int half, int column, int edge, const bool (&has_target)[2],
                         std::uint32_t to) {
    float x[8], slope[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float logit = sum[column / 2 + i];
      if constexpr (capped) {
        logit = bound_fast(p.softcap, logit);
        slope[i] = slope_of(p.softcap, logit);
      }
      x[i] = exp2_approx(fmaf(logit, log2_e, -shifts[half][i / 2 % 2]));
    }
    if (edge < tile_columns) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (column + i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2 >= edge) x[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[half][i / 2 % 2] += x[i];
    if (!p.stores) return;
    if constexpr (capped) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] *= slope[i];
    }
    Pack<BFloat16, 8> pack;
    pack.round(x);
    Matrix8x8x4 squares;
#pragma unroll
    for (int i = 0; i < 4; ++i) squares.at[i] = has_target[i % 2] ? pack.bits.at[i] : 0;
    squares.store(to);
  }
};

#endif

template <bool shares_columns, bool capped>
__global__ void FVLM_CLUSTER_OF_TWO __launch_bounds__(block_threads, 1)
    softmax_stats_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  const BlockTiles<shares_columns> tiles(p);
  s.ping_pong.begin();
  // uniform within the warp
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (group == consumer_warpgroups) {
    setmaxnreg_dec<producer_registers>();
    if (threadIdx.x % warpgroup_threads == 0) run_producer(s, p, tiles);
    __syncwarp();
  } else {
    setmaxnreg_inc<consumer_registers>();
    TileEpilogue<capped> epilogue(p, s, tiles.row);
    int step_index = 0;
    for (int columns = tiles.first + group * tiles.step; columns < tiles.end;
         columns += consumer_warpgroups * tiles.step, ++step_index) {
      TileAccumulator sum[halves];
      multiply_tile(sum, s, p.chunks, group, step_index);
      epilogue.finish(sum, tiles.row, tiles.column(columns));
    }
    epilogue.end(tiles.part * consumer_warpgroups + group);
  }
  cluster_sync(); // no block may exit while others still send to it
#endif
}

int divide_up(int64_t size, int64_t by) {
  return static_cast<int>((size + by - 1) / by);
}

// With an even number of row tiles, the blocks of a cluster share the words.
bool shares_columns_for(int64_t rows) {
  return divide_up(rows, tile_rows) % cluster_blocks == 0;
}
int row_steps_of(int64_t rows) {
  return divide_up(rows, tile_rows) / (shares_columns_for(rows) ? cluster_blocks : 1);
}
int clusters_of_a_row(int multiprocessors, int64_t rows) {
  return std::max(1, multiprocessors / cluster_blocks / row_steps_of(rows));
}

} // namespace

int64_t partial_sum_count(int multiprocessors, int64_t rows) {
  return int64_t{consumer_warpgroups} * clusters_of_a_row(multiprocessors, rows) *
         (shares_columns_for(rows) ? 1 : cluster_blocks);
}

int64_t max_partial_sums(int multiprocessors, int64_t rows) {
  return consumer_warpgroups * std::max<int64_t>(multiprocessors * tile_rows, cluster_blocks * rows);
}

void softmax_stats(const Device& device, const SoftmaxStats& o) {
  const bool shares_columns = shares_columns_for(o.rows);
  const int row_part = shares_columns ? 1 : cluster_blocks, column_part = shares_columns ? cluster_blocks : 1;
  Problem p{};
  p.left = make_tensor_map(sdk::bfloat16, o.hidden.data, o.hidden.row_stride, o.rows, o.width, tile_rows / row_part);
  p.right =
      make_tensor_map(sdk::bfloat16, o.weight.data, o.weight.row_stride, o.vocab, o.width, tile_columns / column_part);
  p.stores = o.out.data != nullptr;
  if (p.stores) p.out = make_tensor_map(sdk::bfloat16, o.out.data, o.out.row_stride, o.rows, o.vocab, box_rows);
  p.shifts = o.shifts;
  p.parts = o.parts;
  p.rows = static_cast<int>(o.rows);
  p.vocab = static_cast<int>(o.vocab);
  p.row_steps = row_steps_of(o.rows);
  p.column_steps = divide_up(o.vocab, tile_columns * row_part);
  p.chunks = divide_up(o.width, box_width);
  p.softcap = o.softcap;
  const bool capped = o.softcap.bound != 0;
  const auto kernel = shares_columns
                          ? (capped ? softmax_stats_kernel<true, true> : softmax_stats_kernel<true, false>)
                          : (capped ? softmax_stats_kernel<false, true> : softmax_stats_kernel<false, false>);
  const auto blocks =
      static_cast<unsigned>(clusters_of_a_row(device.multiprocessors, o.rows) * p.row_steps * cluster_blocks);
  constexpr int bytes = sizeof(Shared) + alignof(Shared);
  sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  kernel<<<blocks, block_threads, bytes, device.stream>>>(p);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
