// norms.cuh: how rows of a norm are shared out: a row stays in the registers of a warp or, where it is wider, of a
// block.
#pragma once

#include "common/cuda_packs.cuh"
#include "launches.h"

namespace fvlm::plugins {

// Where ways of their own for few rows are worth their code, and how many rows that is.
template <class Element>
inline constexpr bool has_few_rows_kernels = std::is_same_v<Element, BFloat16>;
inline constexpr std::int64_t max_few_rows = 2048;

inline constexpr int block_threads = 256;

template <class Element>
__device__ Element* row_at(const Rows& rows, std::int64_t row) {
  return static_cast<Element*>(rows.data) + row * rows.stride;
}

// A thread's part of a row: `packs` packs, each as many elements behind the one before as all threads of the row hold.
template <class Type, int threads, int count>
struct RowPart {
  using Element = Type;
  static constexpr int packs = count;
  static constexpr int size = pack_size<Element>;
  using Values = Pack<Element, size>;
  int thread, width;

  __device__ int first(int pack) const { return (pack * threads + thread) * size; }
  // Only the last pack can lie behind the row's end, unless the row is shorter than a pack for each thread.
  __device__ bool inside(int pack) const { return first(pack) < width; }

  __device__ void load(const Element* row, Values (&values)[packs]) const {
#pragma unroll
    for (int i = 0; i < packs; ++i)
      if (inside(i)) values[i].load(row + first(i));
  }
};

// How many rows a block has at once, so many at most: as many as leave `blocks` of them busy.
inline int rows_of_block(std::int64_t rows, int most, std::int64_t blocks) {
  while (most > 1 && rows < most * blocks) most /= 2;
  return most;
}

// Calls body(threads, packs), integral constants, with the smallest kernel that holds a row in registers; where there
// is a block for each of few rows, with the shortest: most of its time goes to reading its instructions. False where
// the row is too wide for any.
template <class Element, class Body>
bool with_row_parts(std::int64_t width, bool one_row_per_block, const Body& body) {
  const std::int64_t packs = width / pack_size<Element>;
  const auto fits = [&](auto threads, auto each) {
    if (packs > threads * each) return false;
    body(threads, each);
    return true;
  };
  using std::integral_constant;
  constexpr integral_constant<int, warp_size> warp_of_threads;
  constexpr integral_constant<int, block_threads> block_of_threads;
  if constexpr (std::is_same_v<Element, BFloat16>) // models are trained in it: a kernel for each of their widths
    return (one_row_per_block && fits(block_of_threads, integral_constant<int, 1>{})) ||
           fits(warp_of_threads, integral_constant<int, 2>{}) || fits(warp_of_threads, integral_constant<int, 3>{}) ||
           fits(warp_of_threads, integral_constant<int, 4>{}) || fits(block_of_threads, integral_constant<int, 1>{}) ||
           fits(block_of_threads, integral_constant<int, 2>{}) || fits(block_of_threads, integral_constant<int, 4>{});
  else
    return fits(warp_of_threads, integral_constant<int, 4>{}) ||
           fits(block_of_threads, integral_constant < int, sizeof(Element) == 4 ? 8 : 4 > {});
}

} // namespace fvlm::plugins
