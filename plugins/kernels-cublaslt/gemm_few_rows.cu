// gemm_few_rows.cu: matrix products of up to 32 rows in 16 bits. Such a product is limited by the time to read the
// weight once. A block computes 16 or 32 columns of y, for all rows or 16 of them; its warps share the inner dimension,
// read weight and x straight into fragments of mma.sync, and add up in shared memory.
//
// A thread reads 16 bytes, eight numbers of a row, where mma.sync wants four pairs that lie apart. A sum does not
// depend on the order of its terms, so weight and x simply agree on another one.
//
// The norm is part of the product: y = rsqrt(mean(x^2) + epsilon) (x * norm_weight) weight^T, whose factor is known
// when the sums are. The weight does not depend on the kernel before this one, so it is on its way while that one runs.
#include "common/cuda_dependent_launch.cuh"
#include "common/cuda_gelu.cuh"
#include "common/cuda_mma.cuh"
#include "common/cuda_packs.cuh"
#include "gemm_few_rows.h"

namespace fvlm::plugins {
namespace {

constexpr int pack = 8, most_rows = 32, most_skinny_rows = 8;
// Of a weight that more rows than that are multiplied by: every block reads all of x, which costs more than launches do
// where there are many blocks.
constexpr std::int64_t most_numbers_of_weight = 4 << 20;
constexpr int warps = 8, threads = warps * warp_size;
constexpr int tile_columns = 16, tile_rows = 8, chunk = 4 * pack; // of the inner dimension, which a warp reads at once

struct Problem {
  const void *x, *weight, *bias, *residual, *norm_weight;
  void* y;
  std::int64_t x_stride, weight_stride, residual_stride, y_stride;
  int rows, inner, width;
  float epsilon;
};

// 16 bytes of a weight, which are read once.
__device__ uint4 load_weight(const void* from) {
  uint4 bits;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from));
  return bits;
}

template <class T>
__device__ std::uint32_t product_of_pairs(std::uint32_t a, std::uint32_t b) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return sdk::bit_cast<std::uint32_t>(__hmul2(sdk::bit_cast<__nv_bfloat162>(a), sdk::bit_cast<__nv_bfloat162>(b)));
  else
    return sdk::bit_cast<std::uint32_t>(__hmul2(sdk::bit_cast<__half2>(a), sdk::bit_cast<__half2>(b)));
}

// column_tiles: of 16 columns of the product; with SwiGLU the first are of the gate and the second of up.
template <class T, int row_tiles, int column_tiles, bool normed, bool swiglu>
struct Block {
  static constexpr int rows = row_tiles * tile_rows, columns = column_tiles * tile_columns,
                       outputs = swiglu ? tile_columns : columns;
  // Chunks of the weight and of x that a warp has on the way, as many as there are registers for where two blocks share
  // a multiprocessor.
  static constexpr int in_flight = column_tiles == 1 ? 4 : row_tiles == 4 ? 2 : 3;
  static constexpr int x_in_flight = row_tiles < 4 ? in_flight : column_tiles == 1 ? 2 : 1;
  static constexpr int own_outputs = rows * outputs / threads > 0 ? rows* outputs / threads : 1;
  static constexpr int stride = columns + 4; // no two threads of a store share a bank
  struct Sums {
    float products[warps][rows * stride];
    float squares[warps][rows];
  };

  const Problem& p;
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
  const int group = lane / 4, in_chunk = lane % 4 * pack, first_column = static_cast<int>(blockIdx.x) * outputs;
  const int first_row = static_cast<int>(blockIdx.y) * rows;
  const T* rows_of_weight[column_tiles][2];
  uint4 weight[in_flight][column_tiles][2], x[x_in_flight][row_tiles], scale[x_in_flight];
  float products[row_tiles][column_tiles][4] = {}, squares[row_tiles] = {};

  __device__ explicit Block(const Problem& problem) : p(problem) {
#pragma unroll
    for (int tile = 0; tile < column_tiles; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = first_column + (swiglu ? 0 : tile * tile_columns) + half * 8 + group;
        const std::int64_t row = column + (swiglu ? tile * p.width : 0);
        rows_of_weight[tile][half] =
            column < p.width ? static_cast<const T*>(p.weight) + row * p.weight_stride : nullptr;
      }
  }

  // Where the warp's chunk of a number begins: two are adjacent, the other warps' lie between them and the next two.
  __device__ int begin_of(int number) const {
    return ((number / 2 * warps + warp) * 2 + number % 2) * chunk;
  }

  __device__ void load_weight_of(int i, int number) {
    const int k = begin_of(number) + in_chunk;
#pragma unroll
    for (int tile = 0; tile < column_tiles; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        weight[i][tile][half] =
            k < p.inner && rows_of_weight[tile][half] ? load_weight(rows_of_weight[tile][half] + k) : uint4{};
  }
  __device__ void load_x_of(int i, int number) {
    const int k = begin_of(number) + in_chunk;
#pragma unroll
    for (int tile = 0; tile < row_tiles; ++tile) {
      const int row = first_row + tile * tile_rows + group;
      x[i][tile] = k < p.inner && row < p.rows
                       ? *reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + row * p.x_stride + k)
                       : uint4{};
    }
    if (normed)
      scale[i] = k < p.inner ? *reinterpret_cast<const uint4*>(static_cast<const T*>(p.norm_weight) + k) : uint4{};
  }

  // Adds the products of chunk i of the weights on the way, and `of_x` of those of x.
  __device__ void add(int i, int of_x) {
#pragma unroll
    for (int tile = 0; tile < row_tiles; ++tile) {
      if (normed) {
        Pack<T, pack> numbers;
        uint4& own = x[of_x][tile];
        numbers.bits = sdk::bit_cast<typename Pack<T, pack>::Words>(own);
        float wide[pack];
        numbers.widen(wide);
#pragma unroll
        for (int j = 0; j < pack; ++j) squares[tile] = fmaf(wide[j], wide[j], squares[tile]);
        own = {product_of_pairs<T>(own.x, scale[of_x].x), product_of_pairs<T>(own.y, scale[of_x].y),
               product_of_pairs<T>(own.z, scale[of_x].z), product_of_pairs<T>(own.w, scale[of_x].w)};
      }
#pragma unroll
      for (int of = 0; of < column_tiles; ++of) {
        const uint4 low = weight[i][of][0], high = weight[i][of][1];
        mma_16x8x16<T>(products[tile][of], {low.x, high.x, low.y, high.y}, x[of_x][tile].x, x[of_x][tile].y);
        mma_16x8x16<T>(products[tile][of], {low.z, high.z, low.w, high.w}, x[of_x][tile].z, x[of_x][tile].w);
      }
    }
  }

  __device__ void store(Sums& sums) const {
#pragma unroll
    for (int tile = 0; tile < row_tiles; ++tile) {
#pragma unroll
      for (int of = 0; of < column_tiles; ++of)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sums.products[warp][(tile * tile_rows + lane % 4 * 2 + i % 2) * stride + of * tile_columns + group +
                              i / 2 * 8] = products[tile][of][i];
      if (!normed) continue;
      float square = squares[tile];
      square += __shfl_xor_sync(~0u, square, 1);
      square += __shfl_xor_sync(~0u, square, 2);
      if (lane % 4 == 0) sums.squares[warp][tile * tile_rows + group] = square;
    }
  }

  // The outputs of this thread: row and column, the latter in the block.
  struct Place {
    int row, column;
  };
  __device__ Place place(int i) const {
    const int index = static_cast<int>(threadIdx.x) + i * threads;
    return {index / outputs, index % outputs};
  }
  __device__ bool exists(const Place& at) const {
    return at.row < rows && first_row + at.row < p.rows && first_column + at.column < p.width;
  }

  // A row's product with a column of the block, of which `column` is the number in the weight.
  __device__ float total(const Sums& sums, int row, int in_block, int column) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += sums.products[w][row * stride + in_block];
    if (normed) {
      float square = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) square += sums.squares[w][row];
      sum *= rsqrtf(square / static_cast<float>(p.inner) + p.epsilon);
    }
    return p.bias ? sum + static_cast<float>(static_cast<const T*>(p.bias)[column]) : sum;
  }
};

template <class T, int row_tiles, int column_tiles, bool normed, bool swiglu>
__global__ void __launch_bounds__(threads, 2) few_rows_kernel(const __grid_constant__ Problem p) {
  using Own = Block<T, row_tiles, column_tiles, normed, swiglu>;
  __shared__ typename Own::Sums sums;
  Own own(p);
#pragma unroll
  for (int i = 0; i < Own::in_flight; ++i) own.load_weight_of(i, i);
  wait_for_previous_kernel();
  start_next_kernel();
#pragma unroll
  for (int i = 0; i < Own::x_in_flight; ++i) own.load_x_of(i, i);

  float residual[Own::own_outputs] = {};
#pragma unroll
  for (int i = 0; i < Own::own_outputs; ++i)
    if (const auto at = own.place(i); p.residual && own.exists(at))
      residual[i] = static_cast<float>(static_cast<const T*>(
          p.residual)[(own.first_row + at.row) * p.residual_stride + own.first_column + at.column]);
  for (int number = 0; own.begin_of(number) < p.inner; number += Own::in_flight)
#pragma unroll
    for (int i = 0; i < Own::in_flight; ++i) {
      if (own.begin_of(number + i) >= p.inner) break;
      own.add(i, i % Own::x_in_flight);
      own.load_weight_of(i, number + i + Own::in_flight);
      own.load_x_of(i % Own::x_in_flight, number + i + Own::x_in_flight);
    }
  own.store(sums);
  __syncthreads();

#pragma unroll
  for (int i = 0; i < Own::own_outputs; ++i) {
    const auto at = own.place(i);
    if (!own.exists(at)) continue;
    const int column = own.first_column + at.column;
    float value = own.total(sums, at.row, at.column, column);
    if (swiglu)
      value *= sigmoid<T>(value) * own.total(sums, at.row, at.column + tile_columns, column + p.width);
    else
      value += residual[i];
    static_cast<T*>(p.y)[(own.first_row + at.row) * p.y_stride + column] = T(value);
  }
}

template <class T, int row_tiles, int column_tiles, bool normed, bool swiglu>
void launch(const Device& device, const Problem& p, bool starts_early) {
  constexpr int outputs = swiglu ? tile_columns : column_tiles * tile_columns;
  cudaLaunchConfig_t config{};
  constexpr int rows = row_tiles * tile_rows;
  config.gridDim = {static_cast<unsigned>((p.width + outputs - 1) / outputs),
                    static_cast<unsigned>((p.rows + rows - 1) / rows), 1};
  config.blockDim = {threads, 1, 1};
  config.stream = device.stream;
  cudaLaunchAttribute early = may_start_early();
  config.attrs = &early;
  config.numAttrs = starts_early && device.has_clusters ? 1 : 0;
  sdk::check_cuda(cudaLaunchKernelEx(&config, few_rows_kernel<T, row_tiles, column_tiles, normed, swiglu>, p),
                  "launch");
}

// Two tiles of columns a block, so that x is read half as often, where that leaves a block for each multiprocessor.
template <class T, int row_tiles>
void launch(const Device& device, const Problem& p, bool swiglu, bool starts_early) {
  const bool normed = p.norm_weight != nullptr, wide = p.width >= 2 * tile_columns * device.multiprocessors;
  if (swiglu && normed) return launch<T, row_tiles, 2, true, true>(device, p, starts_early);
  if (swiglu) return launch<T, row_tiles, 2, false, true>(device, p, starts_early);
  if (normed)
    return wide ? launch<T, row_tiles, 2, true, false>(device, p, starts_early)
                : launch<T, row_tiles, 1, true, false>(device, p, starts_early);
  return wide ? launch<T, row_tiles, 2, false, false>(device, p, starts_early)
              : launch<T, row_tiles, 1, false, false>(device, p, starts_early);
}

} // namespace

bool few_rows_supports(const SkinnyGemmShape& shape, bool is_hopper) {
  return sdk::is_one_of<BFloat16, Half>(shape.dtype) && !shape.weight_transposed && shape.inner % pack == 0 &&
         (shape.rows <= most_skinny_rows ||
          (shape.rows <= most_rows && shape.inner * shape.width <= most_numbers_of_weight) ||
          (is_hopper && tiled_few_rows_supports(shape)));
}

bool few_rows_aligned(const FewRowsGemm& o) {
  const auto is_aligned = [](const void* data, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % pack == 0;
  };
  return is_aligned(o.x.data, o.x.stride) && is_aligned(o.weight.data, o.weight.stride) && is_aligned(o.norm_weight, 0);
}

bool few_rows_are_skinny(const SkinnyGemmShape& shape) {
  return few_rows_supports(shape, false) && shape.rows <= most_skinny_rows;
}

bool few_rows_takes(const SkinnyGemmShape& shape, const SkinnyGemm& o) {
  return few_rows_are_skinny(shape) && !o.gelu && !o.gelu_input.data && !o.compensation.data &&
         !o.y_compensation.data && !o.sum.data && !o.sums.required();
}

void few_rows_gemm(const Device& device, const SkinnyGemmShape& shape, const FewRowsGemm& o) {
  if (shape.rows == 0) return;
  if (tiled_few_rows_takes(device, shape, o)) return tiled_few_rows_gemm(device, shape, o);
  const Problem p{o.x.data,
                  o.weight.data,
                  o.bias,
                  o.residual.data,
                  o.norm_weight,
                  o.y.data,
                  o.x.stride,
                  o.weight.stride,
                  o.residual.stride,
                  o.y.stride,
                  static_cast<int>(shape.rows),
                  static_cast<int>(shape.inner),
                  static_cast<int>(shape.width),
                  o.epsilon};
  sdk::dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if (p.rows <= tile_rows) return launch<T, 1>(device, p, o.swiglu, o.starts_early);
    // Blocks that share the rows read the weight again, from the L2.
    const int sixteens = (p.rows + 2 * tile_rows - 1) / (2 * tile_rows),
              blocks = (p.width + tile_columns - 1) / tile_columns * sixteens;
    if (sixteens == 1 || blocks <= 2 * device.multiprocessors) return launch<T, 2>(device, p, o.swiglu, o.starts_early);
    launch<T, 4>(device, p, o.swiglu, o.starts_early);
  });
}

} // namespace fvlm::plugins
