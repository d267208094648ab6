// fp8_transpose.cu: the operands of a weight gradient in e4m3, which Hopper reads by rows only: matrices that were
// rounded by rows, transposed at memory speed. See FVLM_BOTH_GRADIENTS in fvlm/kernels.h.
#include "common/cuda_packs.cuh"
#include "fp8_transpose.h"

#include <cuda_fp8.h>

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

// One block. Scales are powers of two, and what is not finite stays so.
__global__ void __launch_bounds__(1024) join_scales(const float* a, const float* b, float* factors, float* of_rows,
                                                    float* of_columns, int64_t count, int64_t rows, int64_t columns) {
  __shared__ float warps[1024 / warp_size];
  float largest = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) largest = fmaxf(largest, a[i] * b[i]);
  for (int lane_mask = warp_size / 2; lane_mask > 0; lane_mask /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lane_mask));
  if (threadIdx.x % warp_size == 0) warps[threadIdx.x / warp_size] = largest;
  __syncthreads();
  for (const float each : warps) largest = fmaxf(largest, each);
  largest = fmaxf(largest, 0x1p-126f); // of rows that are all but zero
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
    factors[i] = isinf(largest) ? 1 : fminf(a[i] * b[i] / largest, 1);
  for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) of_rows[i] = largest;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) of_columns[i] = 1;
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
  join_scales<<<1, 1024, 0, device.stream>>>(a, b, out.factors, out.of_rows, out.of_columns, count, out.rows,
                                             out.columns);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
