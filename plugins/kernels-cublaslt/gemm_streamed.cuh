// gemm_streamed.cuh: the products of gemm_gelu.h and gemm_swiglu.h whose weight is streamed through shared memory, for
// inner dimensions that do not fit into it. For sm_90a, operands of 16 bits or e4m3.
//
// A cluster of two blocks computes 256 x 192 of the sums at a time, a tile of 128 x 192 per block, and shares the
// columns of the weight by TMA multicast: with 128 columns the bandwidth of shared memory binds. Warp-specialized: a
// producer warp loads chunks of 128 bytes of the inner dimension, four pipeline stages deep; two consumer warpgroups
// alternate on tiles, one running its epilogue while the other uses the tensor cores (ping-pong).
#pragma once

#include "common/cuda_tensor_map.h"
#include "gemm_gelu.h"
#include "gemm_pipeline.cuh"

#include <algorithm>

namespace fvlm::plugins::fused {

constexpr int blocks = 2; // per cluster
constexpr int stages = 4, wide = 3, tile_columns = wide * box_width;
constexpr int x_bytes = tile_rows * box_row_bytes, weight_bytes = tile_columns * box_row_bytes; // of a chunk

// Operands: of the epilogue.
template <class Operands>
struct StreamedProblem {
  CUtensorMap x, weight;
  Operands epilogue;
  int row_tiles, column_tiles, chunks; // row tiles of a cluster: 256 rows
  int columns;                         // of the result, for a tile
  int second_half;                     // of a tile's columns of the weight: where it begins, from that of the first
};

// Memory: of the epilogue, whose boxes come first.
template <class Memory>
struct alignas(8 * box_row_bytes) StreamedMemory {
  char x[stages][x_bytes], weight[stages][weight_bytes];
  Memory epilogue;
  Barrier full[stages], empty[stages], ping_pong[consumer_warpgroups];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// Tiles of columns that are computed in turn before the next rows. Their weight stays in the L2.
constexpr int columns_together = 32;

// The tiles of a block. Clusters take units round-robin; neighbouring units have the same rows, so that rows and
// columns come from the L2.
struct BlockTiles {
  int first, step, end, rank;

  template <class Problem>
  __device__ explicit BlockTiles(const Problem& p)
      : first(static_cast<int>(blockIdx.x) / blocks), step(static_cast<int>(gridDim.x) / blocks),
        end(p.row_tiles * p.column_tiles), rank(static_cast<int>(cluster_rank())) {}
  template <class Problem>
  __device__ Tile at(const Problem& p, int unit) const {
    const int group = p.row_tiles * columns_together, first_column = unit / group * columns_together,
              columns = min(columns_together, p.column_tiles - first_column), inside = unit % group;
    return {(inside / columns * blocks + rank) * tile_rows, (first_column + inside % columns) * p.columns};
  }
};

using Stage = PipelineStage<stages>;

template <class T>
inline constexpr int chunk_numbers = box_row_bytes / static_cast<int>(sizeof(T));

// Loads this block's half of a chunk of the weight, for both blocks.
template <class T, bool weight_mn_major, class Problem>
__device__ void load_weight(char* to, const Problem& p, int column, int chunk, int rank, Barrier& full) {
  constexpr unsigned both = (1u << blocks) - 1;
  if constexpr (weight_mn_major) {
    constexpr int rows = box_width / blocks;
    for (int box = 0; box < wide; ++box)
      tma_load(to + (box * box_width + rank * rows) * box_row_bytes, p.weight, column + box * box_width,
               chunk * box_width + rank * rows, full, both);
  } else {
    constexpr int columns = tile_columns / blocks;
    tma_load(to + rank * columns * box_row_bytes, p.weight, chunk * chunk_numbers<T>, column + rank * p.second_half,
             full, both);
  }
}

template <class T, bool weight_mn_major, class Shared, class Problem>
__device__ void run_producer(Shared& s, const Problem& p, const BlockTiles& tiles) {
  unsigned count = 0;
  for (int unit = tiles.first; unit < tiles.end; unit += tiles.step) {
    const Tile of = tiles.at(p, unit);
    for (int chunk = 0; chunk < p.chunks; ++chunk, ++count) {
      const Stage stage(count);
      Barrier& full = s.full[stage.index];
      s.empty[stage.index].wait(stage.parity ^ 1);
      full.arrive_and_expect_tx(x_bytes + weight_bytes);
      tma_load(s.x[stage.index], p.x, chunk * chunk_numbers<T>, of.row, full);
      load_weight<T, weight_mn_major>(s.weight[stage.index], p, of.column, chunk, tiles.rank, full);
    }
  }
  // Waits while the other block still releases stages of this one, which must not exit before.
  for (int i = 0; i < stages; ++i, ++count) s.empty[Stage(count).index].wait(Stage(count).parity ^ 1);
}

template <class T, bool weight_mn_major, class Shared>
__device__ void multiply(TileSum<wide>& sum, Shared& s, int chunks, int group, int tile_count) {
  const ChunkDescriptors first{matrix_descriptor(s.x),
                               matrix_descriptor(s.weight, weight_mn_major ? box_width * box_row_bytes : 16)};
  const auto wait = [&](int, unsigned count) {
    const Stage stage(count);
    s.full[stage.index].wait(stage.parity);
    return ChunkDescriptors{advance_descriptor(first.x, stage.index * x_bytes),
                            advance_descriptor(first.weight, stage.index * weight_bytes)};
  };
  // Both blocks of the cluster have to know, since they load for each other.
  const auto release = [&](unsigned count) {
    if (const unsigned lane = threadIdx.x % warp_size; lane < blocks) s.empty[Stage(count).index].arrive_remote(lane);
  };
  multiply_tile<T, weight_mn_major, wide>(sum, s.ping_pong, chunks, group, tile_count, wait, release);
}

#endif

template <class T, class Epilogue, class Memory, class Operands>
__global__ void __launch_bounds__(threads, 1)
    streamed_gemm_kernel(const __grid_constant__ StreamedProblem<Operands> p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  using Shared = StreamedMemory<Memory>;
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  const BlockTiles tiles(p);
  if (threadIdx.x == 0) {
    for (Barrier& each : s.full) each.init(1);
    for (Barrier& each : s.empty) each.init(blocks * warpgroup_warps);
    s.epilogue.init();
    for (Barrier& each : s.ping_pong) each.init(warpgroup_warps);
    Barrier::fence_init();
  }
  __syncwarp();
  cluster_sync();
  // uniform within the warp
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (group == consumer_warpgroups) {
    setmaxnreg_dec<producer_registers>();
    if (threadIdx.x % warpgroup_threads == 0) run_producer<T, Epilogue::weight_mn_major>(s, p, tiles);
  } else {
    setmaxnreg_inc<consumer_registers>();
    Epilogue epilogue(p.epilogue, s.epilogue);
    int tile_count = 0;
    for (int unit = tiles.first + group * tiles.step; unit < tiles.end;
         unit += consumer_warpgroups * tiles.step, ++tile_count) {
      const Tile of = tiles.at(p, unit);
      TileSum<wide> sum;
      epilogue.prepare(of);
      multiply<T, Epilogue::weight_mn_major>(sum, s, p.chunks, group, tile_count);
      epilogue.finish(sum, of, tile_count);
    }
    epilogue.end();
  }
#endif
}

template <class T, class Epilogue, class Memory, class Operands>
void launch_streamed(const Device& device, const StreamedProblem<Operands>& p) {
  using Shared = StreamedMemory<Memory>;
  const auto kernel = streamed_gemm_kernel<T, Epilogue, Memory, Operands>;
  constexpr int bytes = sizeof(Shared) + alignof(Shared);
  static_assert(bytes <= 227 << 10);
  sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(
      blocks * std::min<int64_t>(device.multiprocessors / blocks, static_cast<int64_t>(p.row_tiles) * p.column_tiles)));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes;
  config.stream = device.stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, p), "launch");
}

// shape.width: columns of the product, which are those of the result but for `gated` ones: there the weight has two
// rows for each of them, `width / 2` apart.
template <class Operands>
StreamedProblem<Operands> streamed_problem(const FusedGemmShape& shape, const Matrix& x, const Matrix& weight,
                                           bool weight_transposed, bool gated = false) {
  constexpr int half = tile_columns / blocks;
  StreamedProblem<Operands> p{};
  p.x = map_of(shape.dtype, x, shape.rows, shape.inner, tile_rows);
  p.weight = weight_transposed ? map_of(shape.dtype, weight, shape.inner, shape.width, box_width / blocks)
                               : map_of(shape.dtype, weight, shape.width, shape.inner, half);
  const int64_t columns = gated ? shape.width / 2 : shape.width;
  p.columns = gated ? half : tile_columns;
  p.second_half = gated ? static_cast<int>(columns) : half;
  p.row_tiles = static_cast<int>(ceil_divide(shape.rows, blocks * tile_rows));
  p.column_tiles = static_cast<int>(ceil_divide(columns, p.columns));
  p.chunks =
      static_cast<int>(ceil_divide(shape.inner * static_cast<int64_t>(sdk::bytes_of(shape.dtype)), box_row_bytes));
  return p;
}

} // namespace fvlm::plugins::fused
