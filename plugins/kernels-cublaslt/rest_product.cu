// rest_product.cu: a block has a tile of the result, and each of its warps a share of what is summed.
#include "common/cuda_mma.cuh"
#include "common/cuda_packs.cuh"
#include "rest_product.h"

namespace fvlm::plugins {
namespace {

constexpr int pack = 8, chunk = 4 * pack; // columns of the inner dimension: of a thread, and of its warp, at once

template <int of_rows, int of_columns, int of_warps>
struct Tile {
  static constexpr int rows = of_rows, columns = of_columns, warps = of_warps, threads = warp * warps;
};

template <class T>
using Part = Pack<T, pack>;

// Elements from `first` on of a row; 0 behind its end. `wide`: packs lie in it as 16 bytes.
template <class T, bool wide>
__device__ Part<T> load(const Rows& rows, int row, int first, int inner) {
  Part<T> part{};
  const T* from = static_cast<const T*>(rows.data) + row * rows.stride + first;
  if constexpr (wide) {
    if (first < inner) part.load(from);
  } else {
#pragma unroll
    for (int i = 0; i < pack; ++i)
      if (first + i < inner)
        part.bits.at[i / 2] |= static_cast<std::uint32_t>(sdk::bit_cast<std::uint16_t>(from[i])) << 16 * (i % 2);
  }
  return part;
}

// Two rows of x and one of the weight. Which columns of the inner dimension a thread has is free, as long as both sides
// agree: each has eight that lie together, four of them for either half of its packs.
template <class T>
__device__ void multiply_halves(float (&sum)[4], const Part<T> (&x)[2], const Part<T>& weight) {
#pragma unroll
  for (int i = 0; i < 4; i += 2)
    multiply_add<T>(sum, {x[0].bits.at[i], x[1].bits.at[i], x[0].bits.at[i + 1], x[1].bits.at[i + 1]},
                    weight.bits.at[i], weight.bits.at[i + 1]);
}

template <class T>
__device__ T& at(const Rows& rows, int row, int column) {
  return static_cast<T*>(rows.data)[row * rows.stride + column];
}

template <class T, bool wide, class Tile>
__global__ void __launch_bounds__(Tile::threads)
    product_with_rest(const __grid_constant__ RestProduct p, int rows, int inner, int width) {
  constexpr int heights = Tile::rows / 16, widths = Tile::columns / 8,
                of_thread = (Tile::rows * Tile::columns + Tile::threads - 1) / Tile::threads;
  __shared__ float parts[Tile::warps][Tile::rows][Tile::columns];
  const int thread = static_cast<int>(threadIdx.x), own = thread / warp, lane = thread % warp;
  const int first_row = static_cast<int>(blockIdx.x) * Tile::rows,
            first_column = static_cast<int>(blockIdx.y) * Tile::columns;
  const auto each_result = [&](const auto& body) {
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
      const int result = thread + i * Tile::threads, row = result / Tile::columns, column = result % Tile::columns;
      if (row < Tile::rows && first_row + row < rows && first_column + column < width) body(i, row, column);
    }
  };

  float totals[of_thread]; // read first, to be there when the products are
  each_result([&](int i, int row, int column) {
    row += first_row, column += first_column;
    totals[i] = static_cast<float>(at<T>(p.residual, row, column));
    if (p.rest.data) totals[i] += static_cast<float>(at<T>(p.rest, row, column));
    if (p.bias) totals[i] += static_cast<float>(static_cast<const T*>(p.bias)[column]);
  });

  float sums[heights][widths][4] = {};
  const int beside = lane / 4, share = lane % 4 * pack;
  for (int from = own * chunk; from < inner; from += Tile::warps * chunk) {
    const int first = from + share;
    Part<T> left[heights][2], right[widths]; // rows behind the last are the last again: nobody asks for their products
#pragma unroll
    for (int h = 0; h < heights; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        left[h][i] = load<T, wide>(p.x, min(first_row + 16 * h + 8 * i + beside, rows - 1), first, inner);
#pragma unroll
    for (int w = 0; w < widths; ++w)
      right[w] = load<T, wide>(p.weight, min(first_column + 8 * w + beside, width - 1), first, inner);
#pragma unroll
    for (int h = 0; h < heights; ++h)
#pragma unroll
      for (int w = 0; w < widths; ++w) multiply_halves<T>(sums[h][w], left[h], right[w]);
  }
#pragma unroll
  for (int h = 0; h < heights; ++h)
#pragma unroll
    for (int w = 0; w < widths; ++w)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        parts[own][16 * h + 8 * (i / 2) + beside][8 * w + lane % 4 * 2 + i % 2] = sums[h][w][i];
  __syncthreads();

  each_result([&](int i, int row, int column) {
#pragma unroll
    for (int w = 0; w < Tile::warps; ++w) totals[i] += parts[w][row][column];
    const T rounded(totals[i]);
    at<T>(p.y, first_row + row, first_column + column) = rounded;
    at<T>(p.y_rest, first_row + row, first_column + column) = T(totals[i] - static_cast<float>(rounded));
  });
}

template <class Tile>
dim3 tiles_of(const RestProductShape& shape) {
  const auto parts = [](std::int64_t size, int part) { return static_cast<unsigned>((size + part - 1) / part); };
  return {parts(shape.rows, Tile::rows), parts(shape.width, Tile::columns)};
}

template <class T, class Tile>
void launch(const Device& device, const RestProductShape& shape, const RestProduct& p, bool wide) {
  const auto kernel = wide ? product_with_rest<T, true, Tile> : product_with_rest<T, false, Tile>;
  kernel<<<tiles_of<Tile>(shape), Tile::threads, 0, device.stream>>>(
      p, static_cast<int>(shape.rows), static_cast<int>(shape.inner), static_cast<int>(shape.width));
}

} // namespace

void rest_product(const Device& device, const RestProductShape& shape, const RestProduct& operands) {
  const auto lies_wide = [](const Rows& rows) {
    return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.stride % pack == 0;
  };
  const bool wide = shape.inner % pack == 0 && lies_wide(operands.x) && lies_wide(operands.weight);
  // Small tiles read everything more often; where there are many, larger ones were faster (bench/LOG.md).
  using Small = Tile<16, 16, 16>;
  using Large = Tile<32, 16, 8>;
  const dim3 small = tiles_of<Small>(shape);
  const bool few = std::uint64_t{small.x} * small.y <= 2 * static_cast<std::uint64_t>(device.multiprocessors);
  sdk::dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if (few)
      launch<T, Small>(device, shape, operands, wide);
    else
      launch<T, Large>(device, shape, operands, wide);
  });
  sdk::check_cuda(cudaGetLastError(), "a product that keeps its rest");
}

} // namespace fvlm::plugins
