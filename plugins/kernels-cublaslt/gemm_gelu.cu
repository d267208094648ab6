// gemm_gelu.cu: matrix products with a fused epilogue (bias and residual; bias and GELU; GELU's derivative with column
// sums) for Hopper, 16-bit operands and an inner dimension of at most 384, as a vision tower of width 384 has; the
// kernels are chosen by measurement.
//
// A block keeps 128 columns of the weight in shared memory and iterates over tiles of 128 rows. Warp-specialized: a
// producer warp loads chunks of x by TMA, four pipeline stages deep; two consumer warpgroups alternate on tiles, one
// running its epilogue while the other uses the tensor cores (ping-pong). Longer inner dimensions: gemm_streamed.cu.
//
// Measured for 1536 from 384 with GELU, bf16, on an H200 before power limits the clock (bench/LOG.md, 2026-11-23):
// 132,096 rows 301 us forward and 340 us backward, 16,512 rows 41.8 and 48.7 us. The plain linear: 1152 from 384 of
// 132,096 rows 160 us, where cuBLASLt takes about 206 us.
#include "common/cuda_device.h"
#include "common/cuda_tensor_map.h"
#include "gemm_gelu.h"
#include "gemm_pipeline.cuh"

#include <algorithm>

namespace fvlm::plugins {
namespace {

using namespace fused;

constexpr int wide = 2, tile = wide * box_width; // columns of a tile, as many as it has rows
constexpr int chunk_bytes = tile * box_row_bytes, max_chunks = 6, stages = 4;

struct Problem {
  CUtensorMap x, weight;
  EpilogueOperands epilogue;
  int row_tiles, column_tiles, chunks;
};

struct alignas(8 * box_row_bytes) Shared {
  char weight[max_chunks][chunk_bytes];
  char x[stages][chunk_bytes];
  EpilogueMemory<wide> epilogue;
  Barrier weight_full[max_chunks], x_full[stages], x_empty[stages], ping_pong[consumer_warpgroups];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// The tiles of a block: every `step`-th tile of one column of tiles.
struct BlockTiles {
  int column, first, step, end;

  __device__ explicit BlockTiles(const Problem& p)
      : column(static_cast<int>(blockIdx.x) % p.column_tiles * tile),
        first(static_cast<int>(blockIdx.x) / p.column_tiles), step(static_cast<int>(gridDim.x) / p.column_tiles),
        end(p.row_tiles) {}
};

using Stage = PipelineStage<stages>;

template <bool weight_mn_major>
__device__ void load_weight_chunk(Shared& s, const Problem& p, const BlockTiles& tiles, int chunk) {
  s.weight_full[chunk].arrive_and_expect_tx(chunk_bytes);
  if constexpr (weight_mn_major) {
    for (int half = 0; half < halves; ++half)
      tma_load(s.weight[chunk] + half * chunk_bytes / halves, p.weight, tiles.column + half * box_width,
               chunk * box_width, s.weight_full[chunk]);
  } else {
    tma_load(s.weight[chunk], p.weight, chunk * box_width, tiles.column, s.weight_full[chunk]);
  }
}

template <bool weight_mn_major>
__device__ void run_producer(Shared& s, const Problem& p, const BlockTiles& tiles) {
  unsigned count = 0;
  for (int row_tile = tiles.first; row_tile < tiles.end; row_tile += tiles.step) {
    // The blocks of a row of tiles need the same chunks of x: each prefetches a part of the next row's into the L2.
    if (const int next = row_tile + tiles.step; next < tiles.end)
      for (int chunk = tiles.column / tile; chunk < p.chunks; chunk += p.column_tiles)
        tma_prefetch(p.x, chunk * box_width, next * tile);
    for (int chunk = 0; chunk < p.chunks; ++chunk, ++count) {
      if (row_tile == tiles.first) load_weight_chunk<weight_mn_major>(s, p, tiles, chunk);
      const Stage stage(count);
      s.x_empty[stage.index].wait(stage.parity ^ 1);
      s.x_full[stage.index].arrive_and_expect_tx(chunk_bytes);
      tma_load(s.x[stage.index], p.x, chunk * box_width, row_tile * tile, s.x_full[stage.index]);
    }
  }
}

template <class T, bool weight_mn_major>
__device__ void multiply(TileSum<wide>& sum, Shared& s, int chunks, int group, int tile_count) {
  const ChunkDescriptors first{matrix_descriptor(s.x),
                               matrix_descriptor(s.weight, weight_mn_major ? chunk_bytes / halves : 16)};
  const auto wait = [&](int chunk, unsigned count) {
    const Stage stage(count);
    s.weight_full[chunk].wait(0);
    s.x_full[stage.index].wait(stage.parity);
    return ChunkDescriptors{advance_descriptor(first.x, stage.index * chunk_bytes),
                            advance_descriptor(first.weight, static_cast<unsigned>(chunk) * chunk_bytes)};
  };
  const auto release = [&](unsigned count) {
    if (threadIdx.x % warp_size == 0) s.x_empty[Stage(count).index].arrive();
  };
  multiply_tile<T, weight_mn_major, wide>(sum, s.ping_pong, chunks, group, tile_count, wait, release);
}

// Adds up the column sums of all warps. A warp's boxes are reused for them.
template <class Epilogue>
__device__ void write_all_sums(const Epilogue& epilogue, Shared& s, const Problem& p, const BlockTiles& tiles) {
  const auto of_warp = [&](int warp) { return reinterpret_cast<float*>(s.epilogue.boxes[warp]); };
  for (int box = 0; box < wide; ++box)
    write_sums(epilogue.sums[box], of_warp(epilogue.warp_index) + box * box_width, box_width);
  asm volatile("bar.sync 1, %0;" ::"n"(consumer_warpgroups * warpgroup_threads) : "memory"); // all consumer threads
  const int column = static_cast<int>(threadIdx.x);
  if (column >= tile || tiles.column + column >= p.epilogue.width) return;
  float sum = 0;
#pragma unroll
  for (int each = 0; each < consumer_warps; ++each) sum += of_warp(each)[column];
  p.epilogue.sums[static_cast<int64_t>(tiles.first) * p.epilogue.width + tiles.column + column] = sum;
}

__device__ inline void init(Shared& s) {
  if (threadIdx.x == 0) {
    for (Barrier& each : s.weight_full) each.init(1);
    for (Barrier& each : s.x_full) each.init(1);
    for (Barrier& each : s.x_empty) each.init(warpgroup_warps);
    s.epilogue.init();
    for (Barrier& each : s.ping_pong) each.init(warpgroup_warps);
    Barrier::fence_init();
  }
  __syncthreads();
}

#endif

template <class T, class Epilogue>
__global__ void __launch_bounds__(threads, 1) gemm_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  const BlockTiles tiles(p);
  init(s);
  constexpr bool weight_mn_major = Epilogue::weight_mn_major;
  // uniform within the warp
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (group == consumer_warpgroups) {
    setmaxnreg_dec<producer_registers>();
    if (threadIdx.x % warpgroup_threads == 0) run_producer<weight_mn_major>(s, p, tiles);
  } else {
    setmaxnreg_inc<consumer_registers>();
    Epilogue epilogue(p.epilogue, s.epilogue);
    epilogue.enter(tiles.column);
    int tile_count = 0;
    for (int row_tile = tiles.first + group * tiles.step; row_tile < tiles.end;
         row_tile += consumer_warpgroups * tiles.step, ++tile_count) {
      const Tile of{row_tile * tile, tiles.column};
      TileSum<wide> sum;
      epilogue.prepare(of);
      multiply<T, weight_mn_major>(sum, s, p.chunks, group, tile_count);
      epilogue.finish(sum, of, tile_count);
    }
    epilogue.end();
    if constexpr (Epilogue::sums_columns) {
      __syncwarp();
      if (p.epilogue.sums) write_all_sums(epilogue, s, p, tiles);
    }
  }
#endif
}

int64_t tile_count_of(int64_t size) {
  return ceil_divide(size, tile);
}

int64_t chunks_in(int64_t inner) {
  return ceil_divide(inner, box_width);
}

template <class T, class Epilogue>
void launch(const Device& device, const FusedGemmShape& shape, const Problem& p) {
  const auto blocks = static_cast<unsigned>(p.column_tiles * column_sum_parts(device.multiprocessors, shape));
  const auto kernel = gemm_kernel<T, Epilogue>;
  constexpr int bytes = sizeof(Shared) + alignof(Shared);
  sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  kernel<<<blocks, threads, bytes, device.stream>>>(p);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

template <template <class, class, int> class Epilogue>
void launch_gelu(const Device& device, const FusedGemmShape& shape, const Problem& p) {
  sdk::dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    launch<typename decltype(element)::type, Epilogue<typename decltype(element)::type, FusedExactGelu, wide>>(
        device, shape, p);
  });
}

Problem problem_of(const FusedGemmShape& shape, const Matrix& x, const Matrix& weight, bool weight_transposed,
                   const Matrix& out) {
  Problem p{};
  p.x = map_of(shape.dtype, x, shape.rows, shape.inner, tile);
  p.weight = weight_transposed ? map_of(shape.dtype, weight, shape.inner, shape.width, box_width)
                               : map_of(shape.dtype, weight, shape.width, shape.inner, tile);
  p.epilogue.out = map_of(shape.dtype, out, shape.rows, shape.width, box_rows);
  p.epilogue.width = static_cast<int>(shape.width);
  p.row_tiles = static_cast<int>(tile_count_of(shape.rows));
  p.column_tiles = static_cast<int>(tile_count_of(shape.width));
  p.chunks = static_cast<int>(chunks_in(shape.inner));
  return p;
}

} // namespace

bool has_fused_gemms(fvlm_device device) {
  return is_hopper(device);
}

bool fused_gemm_supports(const FusedGemmShape& shape) {
  return sdk::is_one_of<BFloat16, Half>(shape.dtype) &&
         (fused_gemm_is_resident(shape) || streamed_gemm_supports(shape));
}

bool fused_gemm_is_resident(const FusedGemmShape& shape) {
  return chunks_in(shape.inner) <= max_chunks && shape.form.exact;
}

bool tma_compatible(fvlm_dtype dtype, std::initializer_list<Matrix> matrices) {
  return sdk::bytes_of(dtype) == 2 && std::all_of(matrices.begin(), matrices.end(), [](const Matrix& each) {
           return plugins::tma_compatible(each.data, each.row_stride);
         });
}

int64_t column_sum_parts(int multiprocessors, const FusedGemmShape& shape) {
  if (!fused_gemm_is_resident(shape)) return streamed_sum_parts(shape);
  return std::clamp<int64_t>(multiprocessors / tile_count_of(shape.width), 1, tile_count_of(shape.rows));
}

void fused_linear(const Device& device, const FusedGemmShape& shape, const FusedLinear& o) {
  Problem p = problem_of(shape, o.x, o.weight, o.weight_transposed, o.y);
  p.epilogue.loads_side = o.residual.data != nullptr;
  if (p.epilogue.loads_side) p.epilogue.side = map_of(shape.dtype, o.residual, shape.rows, shape.width, box_rows);
  p.epilogue.bias = o.bias;
  sdk::dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if (o.weight_transposed)
      launch<T, LinearTransposedEpilogue<T, wide>>(device, shape, p);
    else
      launch<T, LinearEpilogue<T, wide>>(device, shape, p);
  });
}

void fused_gelu_forward(const Device& device, const FusedGemmShape& shape, const FusedGeluForward& o) {
  if (!fused_gemm_is_resident(shape)) return streamed_gelu_forward(device, shape, o);
  Problem p = problem_of(shape, o.x, o.weight, false, o.y);
  p.epilogue.stores_side = o.sum.data != o.y.data;
  if (p.epilogue.stores_side) p.epilogue.side = map_of(shape.dtype, o.sum, shape.rows, shape.width, box_rows);
  p.epilogue.bias = o.bias;
  launch_gelu<GeluForwardEpilogue>(device, shape, p);
}

void fused_gelu_backward(const Device& device, const FusedGemmShape& shape, const FusedGeluBackward& o) {
  if (!fused_gemm_is_resident(shape)) return streamed_gelu_backward(device, shape, o);
  Problem p = problem_of(shape, o.d_y, o.weight, true, o.d_x);
  p.epilogue.side = map_of(shape.dtype, o.x, shape.rows, shape.width, box_rows);
  p.epilogue.sums = o.sums;
  launch_gelu<GeluBackwardEpilogue>(device, shape, p);
}

} // namespace fvlm::plugins
