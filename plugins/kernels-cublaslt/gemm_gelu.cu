// gemm_gelu.cu: matrix products with a fused epilogue (bias and residual; bias and GELU; GELU's derivative with column
// sums) for Hopper, 16-bit operands and an inner dimension of at most 384, as a vision tower of width 384 has; the
// kernels are chosen by measurement.
//
// A block keeps 128 columns of the weight in shared memory and iterates over tiles of 128 rows. Warp-specialized: a
// producer warp loads chunks of x by TMA, four pipeline stages deep; two consumer warpgroups alternate on tiles, one
// running its epilogue while the other uses the tensor cores (ping-pong). Each consumer warp loads and stores its own
// rows of a tile by TMA, in boxes of 16 rows.
//
// Measured for 1536 from 384 with GELU, bf16, on an H200 before power limits the clock (bench/LOG.md, 2026-11-23):
// 132,096 rows 301 us forward and 340 us backward, 16,512 rows 41.8 and 48.7 us. The plain linear: 1152 from 384 of
// 132,096 rows 160 us, where cuBLASLt takes about 206 us.
#include "common/cuda_gelu.cuh"
#include "common/cuda_hopper.cuh"
#include "common/cuda_tensor_map.h"
#include "gemm_gelu.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

using namespace hopper;
using std::int64_t;

constexpr int tile = 128; // rows and columns of a result tile
constexpr int chunk_bytes = tile * box_row_bytes, max_chunks = 6, stages = 4;
constexpr int consumer_warpgroups = 2, consumer_warps = consumer_warpgroups * warpgroup_warps,
              threads = (consumer_warpgroups + 1) * warpgroup_threads;
constexpr int box_rows = 16, box_bytes = box_rows * box_row_bytes;
constexpr int quarters = 4; // of a tile: 64 rows and 64 columns each

struct Problem {
  CUtensorMap x, weight, side, out; // side: the pre-activation that is stored or loaded, or a residual
  const void* bias;
  float* sums;
  int row_tiles, column_tiles, chunks, width;
  bool stores_side, loads_side;
};

struct alignas(8 * box_row_bytes) Shared {
  char weight[max_chunks][chunk_bytes];
  char x[stages][chunk_bytes];
  char boxes[consumer_warps][quarters][box_bytes];
  float bias[tile];
  Barrier weight_full[max_chunks], x_full[stages], x_empty[stages], boxes_full[consumer_warps],
      ping_pong[consumer_warpgroups];
};

// The epilogues.
template <class T>
struct GeluForwardEpilogue;
template <class T>
struct GeluBackwardEpilogue;
template <class T>
struct LinearEpilogue;
template <class T>
struct LinearTransposedEpilogue;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

constexpr int consumer_registers = 240, producer_registers = 24;
constexpr int halves = 2; // of a tile's rows, and of its columns

// The tiles of a block: every `step`-th tile of one column of tiles.
struct BlockTiles {
  int column, first, step, end;

  __device__ explicit BlockTiles(const Problem& p)
      : column(static_cast<int>(blockIdx.x) % p.column_tiles * tile),
        first(static_cast<int>(blockIdx.x) / p.column_tiles), step(static_cast<int>(gridDim.x) / p.column_tiles),
        end(p.row_tiles) {}
};

// The pipeline stage of the block's chunk number `count`.
struct Stage {
  unsigned index, parity;

  __device__ explicit Stage(unsigned count) : index(count % stages), parity(count / stages % 2) {}
};

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

// Computes the product of the warpgroup's tile number `tile_count`. A warpgroup starts when the other one has seen all
// of its chunks arrive: the parity of a stage's barrier cannot distinguish its two latest chunks.
template <class T, bool weight_mn_major>
__device__ void multiply_tile(Accumulator128 (&sum)[halves], Shared& s, int chunks, int group, int tile_count) {
  constexpr int depth = 16, steps = box_width / depth; // of one wgmma
  constexpr int step_bytes = weight_mn_major ? depth * box_row_bytes : depth * 2;
  const std::uint64_t x = matrix_descriptor(s.x),
                      weight = matrix_descriptor(s.weight, weight_mn_major ? chunk_bytes / halves : 16);
  const unsigned count = static_cast<unsigned>((consumer_warpgroups * tile_count + group) * chunks);
  const auto release = [&](unsigned of) {
    if (threadIdx.x % warp_size == 0) s.x_empty[Stage(of).index].arrive();
  };
  s.ping_pong[group].wait(static_cast<unsigned>(tile_count + 1 - group) & 1);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Stage stage(count + static_cast<unsigned>(chunk));
    s.weight_full[chunk].wait(0);
    s.x_full[stage.index].wait(stage.parity);
    const std::uint64_t x_descriptor = advance_descriptor(x, stage.index * chunk_bytes),
                        weight_descriptor = advance_descriptor(weight, static_cast<unsigned>(chunk) * chunk_bytes);
    wgmma_fence();
#pragma unroll
    for (unsigned step = 0; step < steps; ++step)
#pragma unroll
      for (unsigned half = 0; half < halves; ++half)
        wgmma<T, weight_mn_major>(sum[half],
                                  advance_descriptor(x_descriptor, half * chunk_bytes / halves + step * depth * 2),
                                  advance_descriptor(weight_descriptor, step * step_bytes), chunk > 0 || step > 0);
    wgmma_commit();
    if (chunk == 0) continue;
    wgmma_wait<1>();
    release(count + static_cast<unsigned>(chunk) - 1);
  }
  if (threadIdx.x % warp_size == 0) s.ping_pong[consumer_warpgroups - 1 - group].arrive();
  wgmma_wait<0>();
  release(count + static_cast<unsigned>(chunks) - 1);
}

// A quarter of a tile, of which a warp holds 16 rows and eight times eight columns.
struct TileQuarter {
  int rows, columns; // which half of the rows, and of the columns

  __device__ explicit TileQuarter(int index) : rows(index % halves), columns(index / halves) {}
  // The address that this lane passes to ldmatrix or stmatrix for columns 16 pair to 16 pair + 15 of a box.
  __device__ static std::uint32_t at(const char* box, int pair) {
    const unsigned lane = threadIdx.x % warp_size, row = lane % box_rows, pack = lane / box_rows;
    return shared_address(box) + row * box_row_bytes + (((2 * static_cast<unsigned>(pair) + pack) ^ row % 8) << 4);
  }
  __device__ int column(const BlockTiles& tiles) const { return tiles.column + columns * box_width; }
  __device__ int row(int row_tile) const {
    const int of_group = static_cast<int>(threadIdx.x / warp_size % warpgroup_warps);
    return row_tile * tile + rows * tile / halves + of_group * box_rows;
  }
  // Index of the accumulator values that belong to such a part.
  __device__ static constexpr int first_value(int columns, int pair) { return columns * 32 + pair * 8; }
};

// The first of the two columns that a thread holds of an 8 x 8 matrix.
__device__ inline int column_of(int columns, int pair, int square) {
  return columns * box_width + pair * 16 + square * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
}

constexpr int pairs = box_width / 16; // of 8 x 8 matrices, per row of a box

template <class T>
__device__ void widen(const Matrix8x8x4& squares, float (&x)[8]) {
  Pack<T, 8> pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) pack.bits.at[i] = squares.at[i];
  pack.widen(x);
}
template <class T>
__device__ void round(const float (&x)[8], Matrix8x8x4& squares) {
  Pack<T, 8> pack;
  pack.round(x);
#pragma unroll
  for (int i = 0; i < 4; ++i) squares.at[i] = pack.bits.at[i];
}

// An epilogue has prepare(), called before a tile, finish(), called with its product, and end().
struct TileEpilogue {
  const Problem& p;
  const BlockTiles& tiles;
  Shared& s;
  int warp_index = static_cast<int>(threadIdx.x) / warp_size;
  bool is_leader = threadIdx.x % warp_size == 0;

  __device__ TileEpilogue(const Problem& problem, const BlockTiles& block_tiles, Shared& shared)
      : p(problem), tiles(block_tiles), s(shared) {}

  __device__ char* box(int index) const { return s.boxes[warp_index][index]; }
  __device__ Barrier& boxes_full() const { return s.boxes_full[warp_index]; }
  // Starts loading the tile's side operand into this warp's boxes.
  __device__ void load_side(int row_tile) const {
    if (!is_leader) return;
    tma_store_wait_read<0>();
    boxes_full().arrive_and_expect_tx(sizeof s.boxes[0]);
    for (int i = 0; i < quarters; ++i)
      tma_load(box(i), p.side, TileQuarter(i).column(tiles), TileQuarter(i).row(row_tile), boxes_full());
  }
  __device__ void store(const CUtensorMap& to, const TileQuarter& quarter, int row_tile, const char* from) const {
    tma_store(to, quarter.column(tiles), quarter.row(row_tile), from);
  }
};

struct BiasEpilogue : TileEpilogue {
  float2 bias[halves][pairs][2]; // of this thread's columns

  __device__ BiasEpilogue(const Problem& problem, const BlockTiles& block_tiles, Shared& shared)
      : TileEpilogue(problem, block_tiles, shared) {
#pragma unroll
    for (int columns = 0; columns < halves; ++columns)
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair)
#pragma unroll
        for (int square = 0; square < 2; ++square)
          bias[columns][pair][square] = *reinterpret_cast<const float2*>(&s.bias[column_of(columns, pair, square)]);
  }
  __device__ void add(const Accumulator128& sum, int columns, int pair, float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int at = TileQuarter::first_value(columns, pair) + i;
      x[i] = sum[at] + bias[columns][pair][i / 4].x;
      x[i + 1] = sum[at + 1] + bias[columns][pair][i / 4].y;
    }
  }
};

// Adds a bias, and a residual if there is one.
template <class T>
struct LinearEpilogue : BiasEpilogue {
  static constexpr bool weight_mn_major = false;

  using BiasEpilogue::BiasEpilogue;

  __device__ void prepare(int row_tile) {
    if (p.loads_side) load_side(row_tile);
  }
  __device__ void finish(const Accumulator128 (&sum)[halves], int row_tile, int tile_count) {
    if (p.loads_side) boxes_full().wait(static_cast<unsigned>(tile_count) & 1);
#pragma unroll
    for (int i = 0; i < quarters; ++i) {
      const TileQuarter quarter(i);
      if (!p.loads_side) {
        if (is_leader) tma_store_wait_read<quarters - 1>();
        __syncwarp();
      }
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair)
        finish(sum[quarter.rows], quarter.columns, pair, TileQuarter::at(box(i), pair));
      fence_proxy_async();
      __syncwarp();
      if (!is_leader) continue;
      store(p.out, quarter, row_tile, box(i));
      tma_store_commit();
    }
  }
  __device__ void end() {
    if (is_leader) tma_store_wait_read<0>();
  }

 private:
  __device__ void finish(const Accumulator128& sum, int columns, int pair, std::uint32_t at) {
    float x[8];
    add(sum, columns, pair, x);
    Matrix8x8x4 squares;
    if (p.loads_side) {
      float residual[8];
      squares.load(at);
      widen<T>(squares, residual);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] += residual[i];
    }
    round<T>(x, squares);
    squares.store(at);
  }
};
template <class T>
struct LinearTransposedEpilogue : LinearEpilogue<T> {
  static constexpr bool weight_mn_major = true;

  using LinearEpilogue<T>::LinearEpilogue;
};

template <class T>
struct GeluForwardEpilogue : BiasEpilogue {
  static constexpr bool weight_mn_major = false;

  using BiasEpilogue::BiasEpilogue;

  __device__ void prepare(int) {}
  __device__ void finish(const Accumulator128 (&sum)[halves], int row_tile, int) {
#pragma unroll
    for (int i = 0; i < quarters; ++i) {
      const TileQuarter quarter(i);
      char *side = box(i % 2 * 2), *out = box(i % 2 * 2 + 1);
      if (is_leader) tma_store_wait_read<1>();
      __syncwarp();
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair) finish(sum[quarter.rows], quarter.columns, pair, side, out);
      fence_proxy_async();
      __syncwarp();
      if (!is_leader) continue;
      if (p.stores_side) store(p.side, quarter, row_tile, side);
      store(p.out, quarter, row_tile, out);
      tma_store_commit();
    }
  }
  __device__ void end() {
    if (is_leader) tma_store_wait_read<0>();
  }

 private:
  __device__ void finish(const Accumulator128& sum, int columns, int pair, const char* side, const char* out) {
    float x[8];
    add(sum, columns, pair, x);
    Matrix8x8x4 squares;
    round<T>(x, squares);
    if (p.stores_side) squares.store(TileQuarter::at(side, pair));
    widen<T>(squares, x);
#pragma unroll
    for (float& each : x) each = gelu<T>(each);
    round<T>(x, squares);
    squares.store(TileQuarter::at(out, pair));
  }
};

template <class T>
struct GeluBackwardEpilogue : TileEpilogue {
  static constexpr bool weight_mn_major = true;
  float2 sums[halves][pairs][2] = {}; // of this thread's columns

  using TileEpilogue::TileEpilogue;

  __device__ void prepare(int row_tile) { load_side(row_tile); }
  __device__ void finish(const Accumulator128 (&sum)[halves], int row_tile, int tile_count) {
    boxes_full().wait(static_cast<unsigned>(tile_count) & 1);
#pragma unroll
    for (int i = 0; i < quarters; ++i) {
      const TileQuarter quarter(i);
      Matrix8x8x4 side[pairs];
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair) side[pair].load(TileQuarter::at(box(i), pair));
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair)
        finish(sum[quarter.rows], quarter.columns, pair, side[pair], TileQuarter::at(box(i), pair));
      fence_proxy_async();
      __syncwarp();
      if (!is_leader) continue;
      store(p.out, quarter, row_tile, box(i));
      tma_store_commit();
    }
  }
  __device__ void end() {
    if (is_leader) tma_store_wait_read<0>();
    if (!p.sums) return;
    __syncwarp();
#pragma unroll
    for (int columns = 0; columns < halves; ++columns)
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair)
#pragma unroll
        for (int square = 0; square < 2; ++square)
          store_column_sum(sums[columns][pair][square], column_of(columns, pair, square));
    asm volatile("bar.sync 1, %0;" ::"n"(consumer_warpgroups * warpgroup_threads) : "memory"); // all consumer threads
    const int column = static_cast<int>(threadIdx.x);
    if (column >= tile || tiles.column + column >= p.width) return;
    float sum = 0;
#pragma unroll
    for (int each = 0; each < consumer_warps; ++each) sum += warp_column_sums(each)[column];
    p.sums[static_cast<int64_t>(tiles.first) * p.width + tiles.column + column] = sum;
  }

 private:
  __device__ void finish(const Accumulator128& sum, int columns, int pair, Matrix8x8x4 squares, std::uint32_t to) {
    float x[8];
    widen<T>(squares, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = sum[TileQuarter::first_value(columns, pair) + i] * fast_gelu_derivative(x[i]);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      sums[columns][pair][i / 4].x += x[i];
      sums[columns][pair][i / 4].y += x[i + 1];
    }
    round<T>(x, squares);
    squares.store(to);
  }

  // A warp's boxes are reused for its column sums at the end.
  __device__ float* warp_column_sums(int of_warp) const {
    return reinterpret_cast<float*>(s.boxes[of_warp]);
  }
  __device__ void store_column_sum(float2 sum, int column) const {
#pragma unroll
    for (int lane_mask = 4; lane_mask < warp_size; lane_mask *= 2) {
      sum.x += __shfl_xor_sync(0xffffffffu, sum.x, lane_mask);
      sum.y += __shfl_xor_sync(0xffffffffu, sum.y, lane_mask);
    }
    if (threadIdx.x % warp_size < 4) *reinterpret_cast<float2*>(&warp_column_sums(warp_index)[column]) = sum;
  }
};

template <class T>
__device__ void init(Shared& s, const Problem& p, const BlockTiles& tiles) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < tile) {
    const int column = tiles.column + thread;
    s.bias[thread] = p.bias && column < p.width ? static_cast<float>(static_cast<const T*>(p.bias)[column]) : 0;
  }
  if (thread == 0) {
    for (Barrier& each : s.weight_full) each.init(1);
    for (Barrier& each : s.x_full) each.init(1);
    for (Barrier& each : s.x_empty) each.init(warpgroup_warps);
    for (Barrier& each : s.boxes_full) each.init(1);
    for (Barrier& each : s.ping_pong) each.init(warpgroup_warps);
    Barrier::fence_init();
  }
  __syncthreads();
}

#endif

template <class T, template <class> class Epilogue>
__global__ void __launch_bounds__(threads, 1) gemm_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  const BlockTiles tiles(p);
  init<T>(s, p, tiles);
  constexpr bool weight_mn_major = Epilogue<T>::weight_mn_major;
  // uniform within the warp
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (group == consumer_warpgroups) {
    setmaxnreg_dec<producer_registers>();
    if (threadIdx.x % warpgroup_threads == 0) run_producer<weight_mn_major>(s, p, tiles);
  } else {
    setmaxnreg_inc<consumer_registers>();
    Epilogue<T> epilogue(p, tiles, s);
    int tile_count = 0;
    for (int row_tile = tiles.first + group * tiles.step; row_tile < tiles.end;
         row_tile += consumer_warpgroups * tiles.step, ++tile_count) {
      Accumulator128 sum[halves];
      epilogue.prepare(row_tile);
      multiply_tile<T, weight_mn_major>(sum, s, p.chunks, group, tile_count);
      epilogue.finish(sum, row_tile, tile_count);
    }
    epilogue.end();
  }
#endif
}

int64_t tile_count_of(int64_t size) {
  return (size + tile - 1) / tile;
}

int64_t chunks_in(int64_t inner) {
  return (inner + box_width - 1) / box_width;
}

CUtensorMap map_of(fvlm_dtype dtype, const Matrix& matrix, int64_t rows, int64_t columns, int box_rows_wanted) {
  return make_tensor_map(dtype, matrix.data, matrix.row_stride, rows, columns, box_rows_wanted);
}

template <template <class> class Epilogue>
void launch(const Device& device, const FusedGemmShape& shape, Problem& p) {
  p.row_tiles = static_cast<int>(tile_count_of(shape.rows));
  p.column_tiles = static_cast<int>(tile_count_of(shape.width));
  p.chunks = static_cast<int>(chunks_in(shape.inner));
  p.width = static_cast<int>(shape.width);
  const auto blocks = static_cast<unsigned>(p.column_tiles * column_sum_parts(device.multiprocessors, shape));
  sdk::dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    const auto kernel = gemm_kernel<typename decltype(element)::type, Epilogue>;
    constexpr int bytes = sizeof(Shared) + alignof(Shared);
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
    kernel<<<blocks, threads, bytes, device.stream>>>(p);
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

} // namespace

bool has_fused_gemms(fvlm_device device) {
  return is_hopper(device);
}

bool fused_gemm_supports(const FusedGemmShape& shape) {
  return sdk::is_one_of<BFloat16, Half>(shape.dtype) && chunks_in(shape.inner) <= max_chunks;
}

bool tma_compatible(fvlm_dtype dtype, std::initializer_list<Matrix> matrices) {
  return sdk::bytes_of(dtype) == 2 && std::all_of(matrices.begin(), matrices.end(), [](const Matrix& each) {
           return plugins::tma_compatible(each.data, each.row_stride);
         });
}

int64_t column_sum_parts(int multiprocessors, const FusedGemmShape& shape) {
  return std::clamp<int64_t>(multiprocessors / tile_count_of(shape.width), 1, tile_count_of(shape.rows));
}

void fused_linear(const Device& device, const FusedGemmShape& shape, const FusedLinear& o) {
  Problem p{};
  p.x = map_of(shape.dtype, o.x, shape.rows, shape.inner, tile);
  p.out = map_of(shape.dtype, o.y, shape.rows, shape.width, box_rows);
  p.loads_side = o.residual.data != nullptr;
  if (p.loads_side) p.side = map_of(shape.dtype, o.residual, shape.rows, shape.width, box_rows);
  p.bias = o.bias;
  if (o.weight_transposed) {
    p.weight = map_of(shape.dtype, o.weight, shape.inner, shape.width, box_width);
    launch<LinearTransposedEpilogue>(device, shape, p);
  } else {
    p.weight = map_of(shape.dtype, o.weight, shape.width, shape.inner, tile);
    launch<LinearEpilogue>(device, shape, p);
  }
}

void fused_gelu_forward(const Device& device, const FusedGemmShape& shape, const FusedGeluForward& o) {
  Problem p{};
  p.x = map_of(shape.dtype, o.x, shape.rows, shape.inner, tile);
  p.weight = map_of(shape.dtype, o.weight, shape.width, shape.inner, tile);
  p.out = map_of(shape.dtype, o.y, shape.rows, shape.width, box_rows);
  p.stores_side = o.sum.data != o.y.data;
  if (p.stores_side) p.side = map_of(shape.dtype, o.sum, shape.rows, shape.width, box_rows);
  p.bias = o.bias;
  launch<GeluForwardEpilogue>(device, shape, p);
}

void fused_gelu_backward(const Device& device, const FusedGemmShape& shape, const FusedGeluBackward& o) {
  Problem p{};
  p.x = map_of(shape.dtype, o.d_y, shape.rows, shape.inner, tile);
  p.weight = map_of(shape.dtype, o.weight, shape.inner, shape.width, box_width);
  p.side = map_of(shape.dtype, o.x, shape.rows, shape.width, box_rows);
  p.out = map_of(shape.dtype, o.d_x, shape.rows, shape.width, box_rows);
  p.sums = o.sums;
  launch<GeluBackwardEpilogue>(device, shape, p);
}

} // namespace fvlm::plugins
