// cuda_columns.cuh: elementwise kernels over [rows, width] in which a thread keeps one pack of columns and walks down
// the rows, so per-column values (bias, scale, a column sum) stay in registers. Blocks are (columns, row groups) of
// threads; the loads of up to rows_in_flight rows are issued before the first is used.
#pragma once

#include "common/cuda_gradient_sums.cuh"
#include "common/cuda_packs.cuh"

namespace fvlm::plugins {

template <class Element>
__device__ Element* at(const Rows& rows, std::int64_t row, std::int64_t column) {
  return static_cast<Element*>(rows.data) + row * rows.stride + column;
}

// Defaults that an operation inherits.
template <class Type, int pack>
struct ColumnOperation {
  using Element = Type;
  static constexpr int size = pack, rows_in_flight = 4;
  using Values = Pack<Element, size>;
};

// A ColumnOperation has
//   Element, size (of a pack), sums (how many parameter gradients it sums: 0, 1 or 2), rows_in_flight
//   struct Column; Column column(first) const: what it reads once per column pack
//   struct Row; Row load(row, first) const: what it reads per row
//   void apply(Column, Row, row, first, float (&)[sums][size]) const: computes, stores, and adds to the sums
// RowSplit is a block's share of the rows: part `part` of `parts`.
struct RowSplit {
  std::int64_t rows;
  int part, parts;
  int rows_per_step; // consecutive rows per thread and iteration, at most rows_in_flight
};

// Applies the operation to one pack of columns of this block's rows. Row groups of threads take rows round-robin, and
// all loads of an iteration are issued before the first row is computed.
template <class ColumnOperation, int sums>
__device__ void for_each_row(const ColumnOperation& operation, const RowSplit& of, std::int64_t groups, int group,
                             std::int64_t first, float (&sum)[sums][ColumnOperation::size]) {
  constexpr int rows_in_flight = ColumnOperation::rows_in_flight;
  const auto column = operation.column(first);
  for (std::int64_t begin = of.part * groups * of.rows_per_step + group; begin < of.rows;
       begin += of.parts * groups * of.rows_per_step) {
    typename ColumnOperation::Row row[rows_in_flight];
#pragma unroll
    for (int i = 0; i < rows_in_flight; ++i) {
      if (i < of.rows_per_step && begin + i * groups < of.rows) row[i] = operation.load(begin + i * groups, first);
    }
#pragma unroll
    for (int i = 0; i < rows_in_flight; ++i) {
      if (i < of.rows_per_step && begin + i * groups < of.rows)
        operation.apply(column, row[i], begin + i * groups, first, sum);
    }
  }
}

// Launched with blocks of (columns, row groups) threads.
template <class ColumnOperation>
__global__ void __launch_bounds__(256)
    column_kernel(ColumnOperation operation, std::int64_t rows, int packs, int rows_per_step) {
  const int pack = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (pack >= packs) return;
  float no_sum[1][ColumnOperation::size];
  for_each_row(operation, {rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), rows_per_step}, blockDim.y,
               static_cast<int>(threadIdx.y), static_cast<std::int64_t>(pack) * ColumnOperation::size, no_sum);
}

// Computes this block's partial sums for one slice of columns. `lanes` is the slice's width in packs, a power of two.
template <int max_lanes, class ColumnOperation>
__device__ void sum_slice(const ColumnOperation& operation, const RowSplit& of, std::int64_t width, int index,
                          int lanes, const GradientSums& sums) {
  constexpr int size = ColumnOperation::size, parameters = ColumnOperation::sums, warps = sum_threads / warp_size;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % lanes, columns = lanes * size;
  const std::int64_t begin = static_cast<std::int64_t>(index) * columns, first = begin + lane * size;
  const Slice slice{index, of.part, of.parts, parameters, columns, begin, width};
  if (sums.required()) begin_sums(sums, slice);
  float sum[parameters][size] = {};
  if (first < width) for_each_row(operation, of, sum_threads / lanes, thread / lanes, first, sum);
  if (!sums.required()) return;

  __shared__ alignas(32) float shared[parameters][warps * max_lanes * size];
#pragma unroll
  for (int which = 0; which < parameters; ++which) {
    for (int lane_mask = lanes; lane_mask < warp_size; lane_mask *= 2)
#pragma unroll
      for (int i = 0; i < size; ++i) sum[which][i] += __shfl_xor_sync(0xffffffffu, sum[which][i], lane_mask);
    if (thread % warp_size < lanes) write(&shared[which][thread / warp_size * columns + lane * size], sum[which]);
  }
  __syncthreads();
  for (int item = thread * 4; item < parameters * columns; item += sum_threads * 4) {
    const int which = item / columns, column = item - which * columns;
    float4 total{};
#pragma unroll
    for (int i = 0; i < warps; ++i) add(total, *reinterpret_cast<const float4*>(&shared[which][i * columns + column]));
    store_partial(sums, slice, which, column, total);
  }
  add_partials(sums, slice);
}

// blockIdx.y is the slice; the blocks with the same slice split its rows.
template <class ColumnOperation>
__global__ void __launch_bounds__(sum_threads, summing_blocks)
    column_sum_kernel(ColumnOperation operation, std::int64_t rows, std::int64_t width, int lanes, GradientSums sums) {
  sum_slice<warp_size>(
      operation, {rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), ColumnOperation::rows_in_flight},
      width, static_cast<int>(blockIdx.y), lanes, sums);
}

// The grid of a kernel that sums by columns.
struct SumGrid {
  int lanes; // packs per slice
  dim3 blocks;
};

inline SumGrid sum_grid(const Device& device, std::int64_t rows, std::int64_t packs, int size, int rows_in_flight) {
  const auto make_grid = [&](int lanes, std::int64_t& iterations, std::int64_t& max_parts) {
    const std::int64_t slices = (packs + lanes - 1) / lanes, rows_per_iteration = sum_threads / lanes * rows_in_flight;
    iterations = (rows + rows_per_iteration - 1) / rows_per_iteration;
    max_parts = std::max<std::int64_t>(1, max_summing_blocks(device.multiprocessors) / slices);
    if (iterations <= 2) max_parts = 1; // one block per slice finishes sooner than partial sums could be added
    const std::int64_t rows_per_step = (iterations + max_parts - 1) / max_parts;
    return SumGrid{lanes, dim3(static_cast<unsigned>((iterations + rows_per_step - 1) / rows_per_step),
                               static_cast<unsigned>(slices))};
  };
  // Slices of 64 columns leave the fewest partial sums; where those are few compared with the rows, wider slices read
  // memory faster.
  std::int64_t iterations = 0, max_parts = 0;
  const SumGrid narrow = make_grid(std::min(warp_size, 64 / size), iterations, max_parts);
  if (iterations <= 4 * max_parts || size == 1) return narrow;
  return make_grid(packs % warp_size != 0 && packs % (warp_size / 2) == 0 ? warp_size / 2 : warp_size, iterations,
                   max_parts);
}

// Launches the operation over [rows, width].
template <class ColumnOperation>
void launch_column_kernel(const Device& device, std::int64_t rows, std::int64_t width, const ColumnOperation& operation,
                          const GradientSums& sums) {
  constexpr int rows_in_flight = ColumnOperation::rows_in_flight;
  if (rows == 0 || width == 0) return;
  const auto unsupported = [width] {
    return sdk::Failure(FVLM_ERROR_UNSUPPORTED, "rows of %lld elements", static_cast<long long>(width));
  };
  if constexpr (ColumnOperation::sums > 0) {
    if (width > GradientSums::max_width) throw unsupported();
    const SumGrid make_grid =
        sum_grid(device, rows, width / ColumnOperation::size, ColumnOperation::size, rows_in_flight);
    column_sum_kernel<<<make_grid.blocks, sum_threads, 0, device.stream>>>(operation, rows, width, make_grid.lanes,
                                                                           sums);
  } else {
    const std::int64_t packs = width / ColumnOperation::size, tiles = (packs + 255) / 256;
    if (packs > 1 << 30 || tiles > 65535) throw unsupported();
    const auto columns = static_cast<unsigned>((packs + tiles - 1) / tiles);
    const unsigned groups = std::max(1u, 256 / columns);
    // With few rows, one row per thread spreads the work over all multiprocessors.
    const std::int64_t rows_per_step =
        std::clamp<std::int64_t>(rows / (groups * 2 * device.multiprocessors), 1, rows_in_flight);
    const std::int64_t blocks =
        std::min<std::int64_t>((rows + groups * rows_per_step - 1) / (groups * rows_per_step), 0x7fffffff);
    column_kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles)), dim3(columns, groups), 0,
                    device.stream>>>(operation, rows, static_cast<int>(packs), static_cast<int>(rows_per_step));
  }
  sdk::check_cuda(cudaGetLastError(), "launch");
}

// Calls body(Type<Element>{}, std::integral_constant<int, size>{}) with the shape's element type and its pack size.
template <class Body>
void with_packs(const Shape& shape, const Body& body) {
  sdk::dispatch<float, BFloat16, Half>(shape.dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    if (shape.vectorized)
      body(element, std::integral_constant<int, pack_size<Element>>{});
    else
      body(element, std::integral_constant<int, 1>{});
  });
}

// Launches Function<Element, pack>{{}, problem} with the shape's element type and pack size.
template <template <class, int> class Function, class Problem>
void launch_columns(const Device& device, const Shape& shape, const Problem& problem, const GradientSums& sums = {}) {
  with_packs(shape, [&](auto element, auto size) {
    using Chosen = Function<typename decltype(element)::type, decltype(size)::value>;
    launch_column_kernel(device, shape.rows, shape.width, Chosen{{}, problem}, sums);
  });
}

// Column sums alone, such as the gradient of a bias.
template <class Type, int pack>
struct ColumnSums : ColumnOperation<Type, pack> {
  using typename ColumnOperation<Type, pack>::Values;
  static constexpr int sums = 1, rows_in_flight = 8; // it only waits for loads, so more of them are in flight
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
