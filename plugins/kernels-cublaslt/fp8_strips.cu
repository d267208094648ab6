// fp8_strips.cu: rounding to e4m3 on the way to the transpose. Each number is read once: a cluster holds a strip of the
// matrix in registers between the search for its largest magnitudes and the conversion.
#include "fp8_scale.cuh"
#include "fp8_strips.h"

namespace fvlm::plugins {
namespace {

using std::int64_t;

constexpr int pack = 8, quad_rows = 4;

// Four rows of a pack of columns.
struct Square {
  Pack<BFloat16, pack> rows[quad_rows];

  __device__ void load(const Rows& x, int64_t row, int64_t column, bool inside) {
#pragma unroll
    for (int i = 0; i < quad_rows; ++i) {
      rows[i] = {};
      if (inside) rows[i].load(static_cast<const BFloat16*>(x.data) + (row + i) * x.stride + column);
    }
  }
};

constexpr int row_threads = 256, strip_rows = row_threads / warp_size * quad_rows, row_steps = 4,
              step_columns = warp_size * pack;

// A scale a row. A cluster takes 32 rows, a warp four of them, and a block 1,024 columns.
__global__ void __launch_bounds__(row_threads) round_strip_of_rows(Rows x, Fp8Rows out, int64_t rows, int64_t width) {
  constexpr int quads = strip_rows / quad_rows, columns = step_columns * row_steps;
  // Behind a row of words there is room, so that threads that read different rows read different banks.
  __shared__ alignas(16) std::uint32_t turned[quads][columns + 4];
  __shared__ float largest[strip_rows];
  const int lane = threadIdx.x % warp_size, quad = threadIdx.x / warp_size;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * strip_rows, row = first_row + quad * quad_rows,
                first_column = static_cast<int64_t>(blockIdx.x) * columns;
  Square held[row_steps];
#pragma unroll
  for (int i = 0; i < row_steps; ++i) {
    const int64_t column = first_column + i * step_columns + lane * pack;
    held[i].load(x, row, column, row < rows && column < width);
  }
  float values[quad_rows][pack];
#pragma unroll
  for (int j = 0; j < quad_rows; ++j) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < row_steps; ++i) {
      held[i].rows[j].widen(values[0]);
      most = largest_of(values[0], most);
    }
#pragma unroll
    for (int mask = warp_size / 2; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    if (lane == 0) largest[quad * quad_rows + j] = most;
  }
  find_largest_of_cluster<strip_rows>(largest);
  float factor[quad_rows];
#pragma unroll
  for (int j = 0; j < quad_rows; ++j) {
    const RowScale scale(largest[quad * quad_rows + j]);
    factor[j] = scale.factor;
    if (lane == 0 && blockIdx.x == 0 && row < rows) out.scales[row + j] = scale.scale;
  }
#pragma unroll
  for (int i = 0; i < row_steps; ++i) {
#pragma unroll
    for (int j = 0; j < quad_rows; ++j) held[i].rows[j].widen(values[j]);
#pragma unroll
    for (int k = 0; k < pack; ++k)
      turned[quad][i * step_columns + lane * pack + (k ^ lane / 4)] = four_e4m3(
          values[0][k] * factor[0], values[1][k] * factor[1], values[2][k] * factor[2], values[3][k] * factor[3]);
  }
  __syncthreads();
  constexpr int parts = strip_rows / 16; // 16 rows are as many bytes of a column
  for (int i = threadIdx.x; i < columns * parts; i += row_threads) {
    const int column = i / parts, part = i % parts, place = column ^ column / (4 * pack) % pack;
    if (first_column + column >= width || first_row + part * 16 >= rows) continue;
    const uint4 words = {turned[part * 4][place], turned[part * 4 + 1][place], turned[part * 4 + 2][place],
                         turned[part * 4 + 3][place]};
    *reinterpret_cast<uint4*>(out.values + (first_column + column) * rows + first_row + part * 16) = words;
  }
}

constexpr int strip_columns = 32, strip_packs = strip_columns / pack;

// A scale a column. A cluster takes 32 columns, and each thread of its blocks `column_steps` times four rows of eight.
template <int threads, int column_steps>
__global__ void __launch_bounds__(threads) round_strip_of_columns(Rows x, Fp8Rows out, int64_t rows, int64_t width) {
  constexpr int warps = threads / warp_size, step_quads = threads / strip_packs, step_rows = step_quads * quad_rows;
  __shared__ alignas(16) std::uint32_t turned[strip_columns][step_quads];
  __shared__ float of_warps[warps][strip_columns], largest[strip_columns];
  const int lane = threadIdx.x % warp_size, in_column = threadIdx.x % strip_packs * pack,
            quad = threadIdx.x / strip_packs;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * strip_columns, column = first_column + in_column,
                first_row = static_cast<int64_t>(blockIdx.x) * column_steps * step_rows;
  Square held[column_steps];
#pragma unroll
  for (int i = 0; i < column_steps; ++i) {
    const int64_t row = first_row + i * step_rows + quad * quad_rows;
    held[i].load(x, row, column, row < rows && column < width);
  }
  float most[pack] = {}, values[quad_rows][pack];
#pragma unroll
  for (int i = 0; i < column_steps; ++i)
#pragma unroll
    for (int j = 0; j < quad_rows; ++j) {
      held[i].rows[j].widen(values[0]);
#pragma unroll
      for (int k = 0; k < pack; ++k) most[k] = fmaxf(most[k], fabsf(values[0][k]));
    }
#pragma unroll
  for (int k = 0; k < pack; ++k) {
#pragma unroll
    for (int mask = warp_size / 2; mask >= strip_packs; mask /= 2)
      most[k] = fmaxf(most[k], __shfl_xor_sync(0xffffffffu, most[k], mask));
    if (lane < strip_packs) of_warps[threadIdx.x / warp_size][in_column + k] = most[k];
  }
  __syncthreads();
  if (threadIdx.x < strip_columns) {
    float all = 0;
#pragma unroll
    for (int i = 0; i < warps; ++i) all = fmaxf(all, of_warps[i][threadIdx.x]);
    largest[threadIdx.x] = all;
  }
  find_largest_of_cluster<strip_columns>(largest);
  float factor[pack];
#pragma unroll
  for (int k = 0; k < pack; ++k) factor[k] = RowScale(largest[in_column + k]).factor;
  if (blockIdx.x == 0 && threadIdx.x < strip_columns && first_column + threadIdx.x < width)
    out.scales[first_column + threadIdx.x] = RowScale(largest[threadIdx.x]).scale;
#pragma unroll
  for (int i = 0; i < column_steps; ++i) {
#pragma unroll
    for (int j = 0; j < quad_rows; ++j) held[i].rows[j].widen(values[j]);
    // Threads of a warp write to different banks.
    const int place = quad ^ in_column;
#pragma unroll
    for (int k = 0; k < pack; ++k)
      turned[in_column + k][place] = four_e4m3(values[0][k] * factor[k], values[1][k] * factor[k],
                                               values[2][k] * factor[k], values[3][k] * factor[k]);
    __syncthreads();
    constexpr int parts = step_quads / 4;
#pragma unroll
    for (int t = threadIdx.x; t < strip_columns * parts; t += threads) {
      const int to = t / parts, part = t % parts;
      const int64_t row = first_row + i * step_rows + part * 16;
      if (first_column + to < width && row < rows)
        *reinterpret_cast<uint4*>(out.values + (first_column + to) * out.stride(rows) + row) =
            *reinterpret_cast<const uint4*>(&turned[to][part * 4 ^ to / pack * pack]);
    }
    __syncthreads();
  }
}

unsigned blocks(int64_t count, int64_t of) {
  return static_cast<unsigned>((count + of - 1) / of);
}

bool fits(const Shape& s) {
  return s.vectorized && s.rows % 16 == 0;
}

} // namespace

bool round_strips_of_rows(const Device& device, const Shape& s, const Rows& x, const Fp8Rows& out) {
  const unsigned cluster = blocks(s.width, step_columns * row_steps);
  if (!fits(s) || cluster > max_cluster_blocks) return false;
  launch_clusters(device, round_strip_of_rows, cluster, blocks(s.rows, strip_rows), row_threads, x, out, s.rows,
                  s.width);
  return true;
}

bool round_strips_of_columns(const Device& device, const Shape& s, const Rows& x, const Fp8Rows& out) {
  if (!fits(s) || out.stride(s.rows) % 16 != 0) return false;
  const auto launch = [&](auto kernel, int threads, int steps) {
    const unsigned cluster = blocks(s.rows, threads / strip_packs * quad_rows * steps);
    if (cluster > max_cluster_blocks) return false;
    launch_clusters(device, kernel, cluster, blocks(s.width, strip_columns), threads, x, out, s.rows, s.width);
    return true;
  };
  return launch(round_strip_of_columns<256, 4>, 256, 4) || launch(round_strip_of_columns<512, 4>, 512, 4) ||
         launch(round_strip_of_columns<512, 5>, 512, 5);
}

} // namespace fvlm::plugins
