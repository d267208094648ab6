// fp8_rounding.cu: rounding to e4m3 at memory speed. Rows are held in registers between the search for their largest
// magnitude and the conversion. Columns that are too long for fp8_strips.cu are searched by one kernel, and converted
// and transposed by another.
#include "fp8_rounding.h"
#include "fp8_scale.cuh"
#include "fp8_strips.h"

namespace fvlm::plugins {
namespace {

using std::int64_t;

constexpr int block_threads = 256;

// The maximum over `threads` threads: a warp or the whole block.
template <int threads>
__device__ float group_max(float value) {
  value = warp_max(value);
  if constexpr (threads > warp_size) {
    __shared__ float shared[threads / warp_size];
    if (threadIdx.x % warp_size == 0) shared[threadIdx.x / warp_size] = value;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < threads / warp_size; ++i) value = fmaxf(value, shared[i]);
  }
  return value;
}

template <int count>
__device__ void store_e4m3(std::uint8_t* to, const float (&values)[count], float factor) {
  if constexpr (count == 1) {
    *to = static_cast<std::uint8_t>(two_e4m3(values[0] * factor, 0) & 0xff);
  } else {
    static_assert(count == 8);
    std::uint32_t words[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      words[i] = four_e4m3(values[4 * i] * factor, values[4 * i + 1] * factor, values[4 * i + 2] * factor,
                           values[4 * i + 3] * factor);
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
  }
}

// The first numbers of pairs are what the row has at `column` already; this writes them again and what they left.
template <int count>
__device__ void store_pairs(const Fp8Rows& out, std::int64_t row, int64_t column, int64_t width,
                            const float (&values)[count], float factor) {
  std::uint8_t* const to = out.values + row * out.stride(width) + column;
  float rests[count];
#pragma unroll
  for (int i = 0; i < count; ++i) rests[i] = rest_of_e4m3(values[i] * factor);
  store_e4m3(to + (out.is_weight ? 2 : 1) * out.pairs, values, factor);
  store_e4m3(to + (out.is_weight ? 1 : 2) * out.pairs, rests, 1);
  store_e4m3(to + 3 * out.pairs, rests, 1);
}

// `threads` threads a row, each with up to `packs` packs of eight in registers.
template <int threads, int packs>
__global__ void __launch_bounds__(block_threads) round_rows(Rows x, Fp8Rows out, int64_t rows, int64_t width) {
  constexpr int pack = 8;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (block_threads / threads) + threadIdx.x / threads;
  if (row >= rows) return; // whole warps, and no block of one row
  const int lane = threadIdx.x % threads;
  const BFloat16* from = static_cast<const BFloat16*>(x.data) + row * x.stride;
  Pack<BFloat16, pack> held[packs];
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    const int64_t column = (static_cast<int64_t>(i) * threads + lane) * pack;
    if (column < width) held[i].load(from + column);
  }
  float largest = 0, values[pack];
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    if ((static_cast<int64_t>(i) * threads + lane) * pack >= width) continue;
    held[i].widen(values);
    largest = largest_of(values, largest);
  }
  const RowScale scale(group_max<threads>(largest));
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    const int64_t column = (static_cast<int64_t>(i) * threads + lane) * pack;
    if (column >= width) continue;
    held[i].widen(values);
    store_e4m3(out.values + row * out.stride(width) + column, values, scale.factor);
    if (column >= width - out.pairs) store_pairs(out, row, column, width, values, scale.factor);
  }
  if (lane == 0) out.scales[row] = scale.scale;
}

// Rows of any width and alignment, which are read twice.
__global__ void __launch_bounds__(block_threads) round_any_row(Rows x, Fp8Rows out, int64_t width) {
  const int64_t row = blockIdx.x;
  const BFloat16* from = static_cast<const BFloat16*>(x.data) + row * x.stride;
  float largest = 0, value[1];
  for (int64_t column = threadIdx.x; column < width; column += block_threads) {
    read(from + column, value);
    largest = largest_of(value, largest);
  }
  const RowScale scale(group_max<block_threads>(largest));
  for (int64_t column = threadIdx.x; column < width; column += block_threads) {
    read(from + column, value);
    store_e4m3(out.values + row * out.stride(width) + column, value, scale.factor);
    if (column >= width - out.pairs) store_pairs(out, row, column, width, value, scale.factor);
  }
  if (threadIdx.x == 0) out.scales[row] = scale.scale;
}

constexpr int column_rows = 256; // rows of a block that searches columns

// The largest magnitudes of `pack` columns a thread. Magnitudes are not negative, so that their bits compare as they
// do: `largest` has to be zeroed before.
template <int pack>
__global__ void __launch_bounds__(block_threads) find_largest(Rows x, float* largest, int64_t rows, int64_t width) {
  constexpr int column_threads = 32, row_threads = block_threads / column_threads, columns = column_threads * pack;
  __shared__ float shared[row_threads][columns];
  const int in_column = threadIdx.x % column_threads * pack, in_row = threadIdx.x / column_threads;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * columns, column = first_column + in_column;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * column_rows, end = min(rows, begin + column_rows);
  float all[pack] = {};
  if (column < width) {
#pragma unroll 4
    for (int64_t row = begin + in_row; row < end; row += row_threads) {
      float values[pack];
      read(static_cast<const BFloat16*>(x.data) + row * x.stride + column, values);
#pragma unroll
      for (int i = 0; i < pack; ++i) all[i] = fmaxf(all[i], fabsf(values[i]));
    }
  }
#pragma unroll
  for (int i = 0; i < pack; ++i) shared[in_row][in_column + i] = all[i];
  __syncthreads();
  for (int i = threadIdx.x; i < columns && first_column + i < width; i += block_threads) {
    float value = shared[0][i];
#pragma unroll
    for (int row = 1; row < row_threads; ++row) value = fmaxf(value, shared[row][i]);
    atomicMax(reinterpret_cast<int*>(largest) + first_column + i, __float_as_int(value));
  }
}

constexpr int tile_columns = 64, tile_rows = 128;

// Where a word of a column lies, so that threads of a warp write to different banks.
__device__ inline int spread(int column, int quad) {
  return quad ^ (column / 8 * 4);
}

// Each thread converts four rows of a pack of columns and leaves them, transposed, as words in shared memory, from
// which rows of the result are written.
template <int pack>
__global__ void __launch_bounds__(block_threads) round_columns(Rows x, Fp8Rows out, int64_t rows, int64_t width) {
  constexpr int quads = tile_rows / 4, packs = tile_columns / pack;
  __shared__ std::uint32_t turned[tile_columns][quads];
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * tile_columns,
                first_row = static_cast<int64_t>(blockIdx.y) * tile_rows;
  for (int i = threadIdx.x; i < packs * quads; i += block_threads) {
    const int in_column = i % packs * pack, quad = i / packs;
    const int64_t row = first_row + quad * 4, column = first_column + in_column;
    if (row >= rows || column >= width) continue;
    const BFloat16* from = static_cast<const BFloat16*>(x.data) + row * x.stride + column;
    float values[4][pack] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (row + j < rows) read(from + j * x.stride, values[j]);
#pragma unroll
    for (int j = 0; j < pack; ++j) {
      const float factor = RowScale(out.scales[column + j]).factor; // it holds the largest magnitudes
      turned[in_column + j][spread(in_column + j, quad)] =
          four_e4m3(values[0][j] * factor, values[1][j] * factor, values[2][j] * factor, values[3][j] * factor);
    }
  }
  __syncthreads();
  const bool aligned = out.stride(rows) % 4 == 0 && rows % 4 == 0; // rows of the result
  for (int i = threadIdx.x; i < tile_columns * quads; i += block_threads) {
    const int in_column = i / quads, quad = i % quads;
    const int64_t row = first_row + quad * 4, column = first_column + in_column;
    if (column >= width || row >= rows) continue;
    std::uint8_t* to = out.values + column * out.stride(rows) + row;
    const std::uint32_t word = turned[in_column][spread(in_column, quad)];
    if (aligned)
      *reinterpret_cast<std::uint32_t*>(to) = word;
    else
      for (int j = 0; j < 4 && row + j < rows; ++j) to[j] = static_cast<std::uint8_t>(word >> (8 * j));
  }
}

// The pairs of eight rows of x, which are those of a column of the result.
__global__ void __launch_bounds__(block_threads) pair_columns(Rows x, Fp8Rows out, int64_t rows, int64_t width) {
  constexpr int pack = 8;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * block_threads + threadIdx.x,
                row = rows - out.pairs + static_cast<int64_t>(blockIdx.y) * pack;
  if (column >= width) return;
  float values[pack];
#pragma unroll
  for (int i = 0; i < pack; ++i)
    values[i] = static_cast<float>(static_cast<const BFloat16*>(x.data)[(row + i) * x.stride + column]);
  store_pairs(out, column, row, rows, values, 1 / out.scales[column]);
}

__global__ void scales_of_largest(float* scales, int64_t count) {
  const int64_t i = sdk::item_index();
  if (i < count) scales[i] = RowScale(scales[i]).scale;
}

unsigned blocks(int64_t count, int64_t of) {
  return static_cast<unsigned>((count + of - 1) / of);
}

template <int threads, int packs>
void launch_rows(const Device& device, const Shape& s, const Rows& x, const Fp8Rows& out) {
  round_rows<threads, packs>
      <<<blocks(s.rows, block_threads / threads), block_threads, 0, device.stream>>>(x, out, s.rows, s.width);
}

void round_tiles_of_columns(const Device& device, const Shape& s, const Rows& x, const Fp8Rows& out) {
  sdk::check_cuda(cudaMemsetAsync(out.scales, 0, static_cast<std::size_t>(s.width) * sizeof(float), device.stream),
                  "cudaMemsetAsync");
  const dim3 tiles(blocks(s.width, tile_columns), blocks(s.rows, tile_rows));
  if (s.vectorized) {
    find_largest<8><<<dim3(blocks(s.width, 256), blocks(s.rows, column_rows)), block_threads, 0, device.stream>>>(
        x, out.scales, s.rows, s.width);
    round_columns<8><<<tiles, block_threads, 0, device.stream>>>(x, out, s.rows, s.width);
  } else {
    find_largest<1><<<dim3(blocks(s.width, 32), blocks(s.rows, column_rows)), block_threads, 0, device.stream>>>(
        x, out.scales, s.rows, s.width);
    round_columns<1><<<tiles, block_threads, 0, device.stream>>>(x, out, s.rows, s.width);
  }
  scales_of_largest<<<blocks(s.width, block_threads), block_threads, 0, device.stream>>>(out.scales, s.width);
}

} // namespace

void round_rows_to_fp8(const Device& device, const Shape& s, const Rows& x, const Fp8Rows& out) {
  if (!s.vectorized || s.width > 18432)
    round_any_row<<<blocks(s.rows, 1), block_threads, 0, device.stream>>>(x, out, s.width);
  else if (s.width <= 1024)
    launch_rows<32, 4>(device, s, x, out);
  else if (s.width <= 2304) // with the room of adapters behind 2,048
    launch_rows<32, 9>(device, s, x, out);
  else if (s.width <= 4096)
    launch_rows<256, 2>(device, s, x, out);
  else if (s.width <= 8192)
    launch_rows<256, 4>(device, s, x, out);
  else if (s.width <= 10240)
    launch_rows<256, 5>(device, s, x, out);
  else
    launch_rows<256, 9>(device, s, x, out);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

void round_columns_to_fp8(const Device& device, const Shape& s, const Rows& x, const Fp8Rows& out) {
  if (!round_strips_of_columns(device, s, x, out)) round_tiles_of_columns(device, s, x, out);
  if (out.pairs > 0)
    pair_columns<<<dim3(blocks(s.width, block_threads), blocks(out.pairs, 8)), block_threads, 0, device.stream>>>(
        x, out, s.rows, s.width);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
