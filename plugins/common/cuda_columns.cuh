// cuda_columns.cuh: kernels in which a thread keeps to one pack of columns and goes from row to row: what belongs to a
// column (bias, scale, a gradient's sum) stays in its registers.
#pragma once

#include "common/cuda_packs.cuh"
#include "common/cuda_sums.cuh"

namespace fvlm::plugins {

template <class Element>
__device__ Element* at(const Rows& rows, std::int64_t row, std::int64_t column) {
  return static_cast<Element*>(rows.data) + row * rows.stride + column;
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
// A block's part of the rows of some columns: one of so many.
struct PartOfRows {
  std::int64_t rows;
  int part, parts;
  int each; // rows of a thread in a row, rows_at_once at most
};

// Goes through them for one pack of columns. The block's groups of threads take rows in turn, and those of a thread are
// read before the first is computed with.
template <class Operation, int sums>
__device__ void walk(const Operation& operation, const PartOfRows& of, std::int64_t groups, int group,
                     std::int64_t first, float (&sum)[sums][Operation::size]) {
  constexpr int rows_at_once = Operation::rows_at_once;
  const auto column = operation.column(first);
  for (std::int64_t begin = of.part * groups * of.each + group; begin < of.rows; begin += of.parts * groups * of.each) {
    typename Operation::Row row[rows_at_once];
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
      if (i < of.each && begin + i * groups < of.rows) row[i] = operation.load(begin + i * groups, first);
    }
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
      if (i < of.each && begin + i * groups < of.rows) operation.apply(column, row[i], begin + i * groups, first, sum);
    }
  }
}

// Blocks of (columns, groups of rows) threads.
template <class Operation>
__global__ void __launch_bounds__(256) by_columns(Operation operation, std::int64_t rows, int packs, int each) {
  const int pack = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (pack >= packs) return;
  float no_sum[1][Operation::size];
  walk(operation, {rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), each}, blockDim.y,
       static_cast<int>(threadIdx.y), static_cast<std::int64_t>(pack) * Operation::size, no_sum);
}

// A block's part of the sums of a slice of columns: of so many packs, a power of two.
template <int most_lanes, class Operation>
__device__ void sum_slice(const Operation& operation, const PartOfRows& of, std::int64_t width, int index, int lanes,
                          const Sums& sums) {
  constexpr int size = Operation::size, parameters = Operation::sums, warps = sum_threads / warp;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % lanes, columns = lanes * size;
  const std::int64_t begin = static_cast<std::int64_t>(index) * columns, first = begin + lane * size;
  const Slice slice{index, of.part, of.parts, parameters, columns, begin, width};
  if (sums.wanted()) begin_sums(sums, slice);
  float sum[parameters][size] = {};
  if (first < width) walk(operation, of, sum_threads / lanes, thread / lanes, first, sum);
  if (!sums.wanted()) return;

  __shared__ alignas(32) float shared[parameters][warps * most_lanes * size];
#pragma unroll
  for (int which = 0; which < parameters; ++which) {
    for (int apart = lanes; apart < warp; apart *= 2)
#pragma unroll
      for (int i = 0; i < size; ++i) sum[which][i] += __shfl_xor_sync(0xffffffffu, sum[which][i], apart);
    if (thread % warp < lanes) write(&shared[which][thread / warp * columns + lane * size], sum[which]);
  }
  __syncthreads();
  for (int item = thread * 4; item < parameters * columns; item += sum_threads * 4) {
    const int which = item / columns, column = item - which * columns;
    float4 total{};
#pragma unroll
    for (int i = 0; i < warps; ++i) add(total, *reinterpret_cast<const float4*>(&shared[which][i * columns + column]));
    put(sums, slice, which, column, total);
  }
  finish_sums(sums, slice);
}

// blockIdx.y: the slice, whose blocks share its rows out among each other.
template <class Operation>
__global__ void __launch_bounds__(sum_threads, summing_blocks)
    sums_by_columns(Operation operation, std::int64_t rows, std::int64_t width, int lanes, Sums sums) {
  sum_slice<warp>(operation, {rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), Operation::rows_at_once},
                  width, static_cast<int>(blockIdx.y), lanes, sums);
}

// How a kernel that sums by columns is cut.
struct Cut {
  int lanes; // packs of a slice
  dim3 blocks;
};

inline Cut cut_for_sums(const Device& device, std::int64_t rows, std::int64_t packs, int size, int rows_at_once) {
  const auto cut = [&](int lanes, std::int64_t& turns, std::int64_t& most) {
    const std::int64_t slices = (packs + lanes - 1) / lanes, of_turn = sum_threads / lanes * rows_at_once;
    turns = (rows + of_turn - 1) / of_turn;
    most = std::max<std::int64_t>(1, most_summing_blocks(device.multiprocessors) / slices);
    if (turns <= 2) most = 1; // sooner done than parts are added
    const std::int64_t each = (turns + most - 1) / most;
    return Cut{lanes, dim3(static_cast<unsigned>((turns + each - 1) / each), static_cast<unsigned>(slices))};
  };
  // Slices of 64 columns leave the fewest parts to add; where that is little beside the rows, wider ones are read
  // faster.
  std::int64_t turns = 0, most = 0;
  const Cut narrow = cut(std::min(warp, 64 / size), turns, most);
  if (turns <= 4 * most || size == 1) return narrow;
  return cut(packs % warp != 0 && packs % (warp / 2) == 0 ? warp / 2 : warp, turns, most);
}

// Launches it over [rows, width].
template <class Operation>
void launch_by_columns(const Device& device, std::int64_t rows, std::int64_t width, const Operation& operation,
                       const Sums& sums = {}) {
  constexpr int rows_at_once = Operation::rows_at_once;
  if (rows == 0 || width == 0) return;
  const auto unsupported = [width] {
    return sdk::Failure(FVLM_ERROR_UNSUPPORTED, "rows of %lld elements", static_cast<long long>(width));
  };
  if constexpr (Operation::sums > 0) {
    if (width > Sums::most_width) throw unsupported();
    const Cut cut = cut_for_sums(device, rows, width / Operation::size, Operation::size, rows_at_once);
    sums_by_columns<<<cut.blocks, sum_threads, 0, device.stream>>>(operation, rows, width, cut.lanes, sums);
  } else {
    const std::int64_t packs = width / Operation::size, tiles = (packs + 255) / 256;
    if (packs > 1 << 30 || tiles > 65535) throw unsupported();
    const auto columns = static_cast<unsigned>((packs + tiles - 1) / tiles);
    const unsigned groups = std::max(1u, 256 / columns);
    // Few rows are spread over all multiprocessors.
    const std::int64_t each = std::clamp<std::int64_t>(rows / (groups * 2 * device.multiprocessors), 1, rows_at_once);
    const std::int64_t blocks = std::min<std::int64_t>((rows + groups * each - 1) / (groups * each), 0x7fffffff);
    by_columns<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles)), dim3(columns, groups), 0,
                 device.stream>>>(operation, rows, static_cast<int>(packs), static_cast<int>(each));
  }
  sdk::check_cuda(cudaGetLastError(), "launch");
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
void launch_columns(const Device& device, const Shape& shape, const Problem& problem, const Sums& sums = {}) {
  with_packs(shape, [&](auto element, auto size) {
    using Chosen = Function<typename decltype(element)::type, decltype(size)::value>;
    launch_by_columns(device, shape.rows, shape.width, Chosen{{}, problem}, sums);
  });
}

// Nothing but sums over rows.
template <class Type, int pack>
struct ColumnSums : Operation<Type, pack> {
  using typename Operation<Type, pack>::Values;
  static constexpr int sums = 1, rows_at_once = 8; // it does nothing but wait for loads
  struct Column {};
  struct Row {
    Values values;
  };
  Rows rows;

  __device__ Column column(std::int64_t) const { return {}; }
  __device__ Row load(std::int64_t row, std::int64_t first) const {
    Row loaded;
    loaded.values.load(at<Type>(rows, row, first));
    return loaded;
  }
  __device__ void apply(const Column&, const Row& loaded, std::int64_t, std::int64_t, float (&sum)[1][pack]) const {
    float values[pack];
    loaded.values.widen(values);
#pragma unroll
    for (int i = 0; i < pack; ++i) sum[0][i] += values[i];
  }
};

} // namespace fvlm::plugins
