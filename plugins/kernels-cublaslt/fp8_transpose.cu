// fp8_transpose.cu: the operands of a weight gradient in e4m3, which Hopper reads by rows only: matrices that were
// rounded by rows, transposed at memory speed. See FVLM_BOTH_GRADIENTS in fvlm/kernels.h.
#include "fp8_scale.cuh"
#include "fp8_transpose.h"

namespace fvlm::plugins {
namespace {

using std::int64_t;

constexpr int block_threads = 256, tile = 128; // rows and columns of a tile
constexpr int pack = 16, packs = tile / pack, quads = tile / 4;
static_assert(packs * quads == block_threads);

// Four values times a power of two, rounded again.
__device__ inline std::uint32_t shifted(std::uint32_t values, __half2 factor) {
  std::uint32_t result = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto two = static_cast<__nv_fp8x2_storage_t>(values >> (16 * i));
    const __half2 wide = __hmul2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)), factor);
    result |= static_cast<std::uint32_t>(
                  __nv_cvt_halfraw2_to_fp8x2(static_cast<__half2_raw>(wide), __NV_SATFINITE, __NV_E4M3))
              << (16 * i);
  }
  return result;
}

// Rows and columns of a square of 4 x 4 bytes, exchanged.
__device__ inline void turn(std::uint32_t (&rows)[4]) {
  const std::uint32_t a = __byte_perm(rows[0], rows[1], 0x5140), b = __byte_perm(rows[2], rows[3], 0x5140),
                      c = __byte_perm(rows[0], rows[1], 0x7362), d = __byte_perm(rows[2], rows[3], 0x7362);
  rows[0] = __byte_perm(a, b, 0x5410);
  rows[1] = __byte_perm(a, b, 0x7632);
  rows[2] = __byte_perm(c, d, 0x5410);
  rows[3] = __byte_perm(c, d, 0x7632);
}

// Where a word of a column lies, so that threads of a warp write to different banks.
__device__ inline int spread(int column, int quad) {
  return quad ^ (column / pack * 4);
}

// Each thread turns four rows of 16 columns and leaves them as words in shared memory, from which rows of the result
// are written. `factors`: of each row; NULL: none.
__global__ void __launch_bounds__(block_threads)
    transpose_bytes(const std::uint8_t* from, std::uint8_t* to, const float* factors, int64_t rows, int64_t width) {
  __shared__ std::uint32_t turned[tile][quads];
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * tile,
                first_row = static_cast<int64_t>(blockIdx.y) * tile;
  const int in_column = threadIdx.x % packs * pack, quad = threadIdx.x / packs;
  const int64_t row = first_row + quad * 4, column = first_column + in_column;
  if (row < rows && column < width) { // both are multiples of 16
    std::uint32_t loaded[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 words = *reinterpret_cast<const uint4*>(from + (row + i) * width + column);
      loaded[i][0] = words.x, loaded[i][1] = words.y, loaded[i][2] = words.z, loaded[i][3] = words.w;
    }
    if (factors) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __half2 factor = __float2half2_rn(factors[row + i]);
#pragma unroll
        for (int j = 0; j < 4; ++j) loaded[i][j] = shifted(loaded[i][j], factor);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t square[4] = {loaded[0][j], loaded[1][j], loaded[2][j], loaded[3][j]};
      turn(square);
#pragma unroll
      for (int i = 0; i < 4; ++i) turned[in_column + 4 * j + i][spread(in_column, quad)] = square[i];
    }
  }
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < tile * quads; i += block_threads) {
    const int64_t to_row = first_column + i / quads, to_column = first_row + i % quads * 4;
    if (to_row < width && to_column < rows)
      *reinterpret_cast<std::uint32_t*>(to + to_row * rows + to_column) =
          turned[i / quads][spread(i / quads, i % quads)];
  }
}

constexpr int join_threads = 512;

// One cluster. Scales are powers of two, and what is not finite stays so.
__global__ void __launch_bounds__(join_threads)
    join_scales(const float* a, const float* b, JoinedScales out, int64_t count) {
  __shared__ float warps[join_threads / warp_size], all;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * join_threads + threadIdx.x,
                step = static_cast<int64_t>(gridDim.x) * join_threads;
  float largest = 0;
#pragma unroll 4
  for (int64_t i = begin; i < count; i += step) largest = fmaxf(largest, a[i] * b[i]);
  largest = warp_max(largest);
  if (threadIdx.x % warp_size == 0) warps[threadIdx.x / warp_size] = largest;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (const float each : warps) largest = fmaxf(largest, each);
    all = largest;
  }
  find_largest_of_cluster<1>(&all);
  largest = fmaxf(all, 0x1p-126f); // of rows that are all but zero
  for (int64_t i = begin; i < count; i += step) out.factors[i] = isinf(largest) ? 1 : fminf(a[i] * b[i] / largest, 1);
  for (int64_t i = begin; i < out.rows; i += step) out.of_rows[i] = largest;
  for (int64_t i = begin; i < out.columns; i += step) out.of_columns[i] = 1;
}

unsigned tiles(int64_t count) {
  return static_cast<unsigned>((count + tile - 1) / tile);
}

} // namespace

void transpose_fp8(const Device& device, const std::uint8_t* from, std::uint8_t* to, const float* factors,
                   std::int64_t rows, std::int64_t width) {
  transpose_bytes<<<dim3(tiles(width), tiles(rows)), block_threads, 0, device.stream>>>(from, to, factors, rows, width);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

void join_fp8_scales(const Device& device, const float* a, const float* b, std::int64_t count,
                     const JoinedScales& out) {
  launch_clusters(device, join_scales, max_cluster_blocks, 1, join_threads, a, b, out, count);
}

} // namespace fvlm::plugins
