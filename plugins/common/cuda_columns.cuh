// cuda_columns.cuh: kernels in which a thread keeps to one pack of columns and goes from row to row: what belongs to a
// column (bias, scale, a gradient's sum) stays in its registers.
#pragma once

#include "common/cuda_packs.cuh"
#include "common/cuda_rows.h"

#include <algorithm>

namespace fvlm::plugins {

template <class Element>
__device__ Element* at(const Rows& rows, std::int64_t row, std::int64_t column) {
  return static_cast<Element*>(rows.data) + row * rows.stride + column;
}

// A launch of sum_parts() behind this kernel may be got ready; it waits for this one's end by itself.
__device__ inline void let_sum_parts_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// What an operation begins with.
template <class Type, int pack>
struct Operation {
  using Element = Type;
  static constexpr int size = pack, rows_at_once = 4;
  using Values = Pack<Element, size>;
};

// An Operation has
//   Element, size (of a pack), sums (how many gradients of parameters it sums up: 0, 1 or 2), rows_at_once
//   struct Column; Column column(first) const            what it reads once
//   struct Row; Row load(row, first) const               what it reads of a row
//   void apply(Column, Row, row, first, float (&)[sums][size]) const
// Blocks of (columns, groups of rows) threads; rows_at_once rows are read before the first is computed with.
template <class Operation, int rows_at_once>
__global__ void __launch_bounds__(256) by_columns(Operation operation, std::int64_t rows, int packs, Parts parts) {
  constexpr int size = Operation::size, sums = Operation::sums;
  const int pack = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const bool inside = pack < packs;
  const std::int64_t first = static_cast<std::int64_t>(pack) * size, groups = blockDim.y;
  float sum[sums > 0 ? sums : 1][size] = {};
  if constexpr (sums > 0) let_sum_parts_start();
  if (inside) {
    const auto column = operation.column(first);
    for (std::int64_t begin = blockIdx.x * groups * rows_at_once + threadIdx.y; begin < rows;
         begin += gridDim.x * groups * rows_at_once) {
      typename Operation::Row row[rows_at_once];
#pragma unroll
      for (int i = 0; i < rows_at_once; ++i) {
        if (begin + i * groups < rows) row[i] = operation.load(begin + i * groups, first);
      }
#pragma unroll
      for (int i = 0; i < rows_at_once; ++i) {
        if (begin + i * groups < rows) operation.apply(column, row[i], begin + i * groups, first, sum);
      }
    }
  }
  if constexpr (sums > 0) {
    if (!parts.data) return;
    __shared__ float shared[256 * size];
    const std::int64_t width = static_cast<std::int64_t>(packs) * size;
#pragma unroll
    for (int which = 0; which < sums; ++which) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < size; ++i) shared[(threadIdx.y * size + i) * blockDim.x + threadIdx.x] = sum[which][i];
      __syncthreads();
      if (threadIdx.y > 0 || !inside) continue;
      float* out = parts.data + (blockIdx.x * sums + which) * width + first;
#pragma unroll
      for (int i = 0; i < size; ++i) {
        float total = 0;
        for (int group = 0; group < groups; ++group) total += shared[(group * size + i) * blockDim.x + threadIdx.x];
        out[i] = total;
      }
    }
  }
}

// Launches it over [rows, width]; returns how many blocks have written partial sums.
template <class Operation>
int launch_by_columns(const Device& device, std::int64_t rows, std::int64_t width, const Operation& operation,
                      const Parts& parts = {}) {
  constexpr int rows_at_once = Operation::rows_at_once;
  const std::int64_t packs = width / Operation::size, tiles = (packs + 255) / 256;
  if (rows == 0 || packs == 0) return 0;
  if (packs > 1 << 30 || tiles > 65535)
    throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "rows of %lld elements", static_cast<long long>(width));
  const auto columns = static_cast<unsigned>((packs + tiles - 1) / tiles);
  const unsigned groups = std::max(1u, 256 / columns);
  std::int64_t blocks = (rows + groups * rows_at_once - 1) / (groups * rows_at_once);
  if (parts.data) {
    const std::int64_t resident = std::max<std::int64_t>(1, 4 * device.multiprocessors / tiles);
    blocks = std::min({blocks, resident, static_cast<std::int64_t>(parts.most)});
  }
  blocks = std::min<std::int64_t>(blocks, 0x7fffffff);
  by_columns<Operation, rows_at_once>
      <<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles)), dim3(columns, groups), 0, device.stream>>>(
          operation, rows, static_cast<int>(packs), parts);
  sdk::check_cuda(cudaGetLastError(), "launch");
  return static_cast<int>(blocks);
}

// Calls body(Type<Element>{}, std::integral_constant<int, size>{}) with the shape's element type and pack.
template <class Body>
void with_packs(const Shape& shape, const Body& body) {
  sdk::dispatch<float, BFloat16, Half>(shape.dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    if (shape.wide)
      body(element, std::integral_constant<int, pack_size<Element>>{});
    else
      body(element, std::integral_constant<int, 1>{});
  });
}

// Launches Function<Element, pack>{{}, problem} over the shape's rows with its element type and pack.
template <template <class, int> class Function, class Problem>
int launch_columns(const Device& device, const Shape& shape, const Problem& problem, const Parts& parts = {}) {
  int blocks = 0;
  with_packs(shape, [&](auto element, auto size) {
    using Chosen = Function<typename decltype(element)::type, decltype(size)::value>;
    blocks = launch_by_columns(device, shape.rows, shape.width, Chosen{{}, problem}, parts);
  });
  return blocks;
}

} // namespace fvlm::plugins
