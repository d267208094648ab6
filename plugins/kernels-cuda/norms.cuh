// norms.cuh: how the norm kernels distribute rows: a row is held in the registers of half a warp, of a warp or, if it
// is wider, of a block.
#pragma once

#include "common/cuda_dependent_launch.cuh"
#include "common/cuda_packs.cuh"
#include "launches.h"

namespace fvlm::plugins {

// The types that have separate kernels for few rows, and how many rows those take.
template <class Element>
inline constexpr bool has_few_rows_kernels = std::is_same_v<Element, BFloat16>;
inline constexpr std::int64_t max_few_rows = 2048;

inline constexpr int block_threads = 256;

// Sums over half a warp, whose other half need not sum at the same time.
template <>
class GroupSum<warp_size / 2> {
 public:
  __device__ float operator()(float value) const {
    constexpr int threads = warp_size / 2;
    const unsigned half = ((1u << threads) - 1) << (threadIdx.x & threads);
#pragma unroll
    for (int lane_mask = threads / 2; lane_mask > 0; lane_mask /= 2) value += __shfl_xor_sync(half, value, lane_mask);
    return value;
  }
};

template <class Element>
__device__ Element* row_at(const Rows& rows, std::int64_t row) {
  return static_cast<Element*>(rows.data) + row * rows.stride;
}

// The first element of a norm's row, which may be one of several heads in a row of the operand.
template <class Element, class Norm>
__device__ Element* row_at(const Norm& norm, const Rows& rows, std::int64_t row, std::int64_t width) {
  if (norm.heads == 1) return row_at<Element>(rows, row);
  const unsigned heads = static_cast<unsigned>(norm.heads), whole = static_cast<unsigned>(row) / heads;
  return static_cast<Element*>(rows.data) + whole * rows.stride + (static_cast<unsigned>(row) - whole * heads) * width;
}

// A thread's part of a row: `packs` packs, which the threads of the row interleave.
template <class Type, int threads, int count>
struct RowPart {
  using Element = Type;
  static constexpr int packs = count;
  static constexpr int size = pack_size<Element>;
  using Values = Pack<Element, size>;
  int thread, width;

  __device__ int first(int pack) const { return (pack * threads + thread) * size; }
  // Only the last pack can be past the end of the row, unless the row is shorter than one pack per thread.
  __device__ bool inside(int pack) const { return first(pack) < width; }

  __device__ void load(const Element* row, Values (&values)[packs]) const {
#pragma unroll
    for (int i = 0; i < packs; ++i)
      if (inside(i)) values[i].load(row + first(i));
  }
};

// Rows per block, at most `max_rows`, halved until at least `blocks` blocks have work.
inline int rows_of_block(std::int64_t rows, int max_rows, std::int64_t blocks) {
  while (max_rows > 1 && rows < max_rows * blocks) max_rows /= 2;
  return max_rows;
}

// Calls body(threads, packs), both integral constants, for the smallest kernel that holds a row in registers. If few
// rows get one block each, the kernel with the shortest code is chosen, as most of its time goes into loading
// instructions. Returns false if the row is too wide for all of them.
template <class Element, class Body>
bool with_row_parts(std::int64_t width, bool one_row_per_block, const Body& body) {
  const std::int64_t packs = width / pack_size<Element>;
  const auto fits = [&](auto threads, auto each) {
    if (packs > threads * each) return false;
    body(threads, each);
    return true;
  };
  using std::integral_constant;
  constexpr integral_constant<int, warp_size / 2> half_warp_of_threads;
  constexpr integral_constant<int, warp_size> warp_of_threads;
  constexpr integral_constant<int, block_threads> block_of_threads;
  // models are trained in it, so there is a kernel for each of their widths, and of their heads
  if constexpr (std::is_same_v<Element, BFloat16>)
    return fits(half_warp_of_threads, integral_constant<int, 1>{}) ||
           (one_row_per_block && fits(block_of_threads, integral_constant<int, 1>{})) ||
           fits(warp_of_threads, integral_constant<int, 2>{}) || fits(warp_of_threads, integral_constant<int, 3>{}) ||
           fits(warp_of_threads, integral_constant<int, 4>{}) || fits(block_of_threads, integral_constant<int, 1>{}) ||
           fits(block_of_threads, integral_constant<int, 2>{}) || fits(block_of_threads, integral_constant<int, 4>{});
  else
    return fits(warp_of_threads, integral_constant<int, 4>{}) ||
           fits(block_of_threads, integral_constant < int, sizeof(Element) == 4 ? 8 : 4 > {});
}

} // namespace fvlm::plugins
