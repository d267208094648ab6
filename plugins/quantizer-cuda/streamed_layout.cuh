// streamed_layout.cuh: how a block of streamed_product.cuh is laid out, and which part of the product is its own.
#pragma once

#include "common/cuda_cluster.cuh"
#include "common/cuda_hopper.cuh"
#include "common/cuda_tensor_map.h"

namespace fvlm::plugins::streamed {

using hopper::Barrier, hopper::box_row_bytes;

constexpr int warps = 8, consumers = warps * warp_size, threads = consumers + warp_size;
constexpr int rows_of_x = 8, tile_columns = 16; // of a product of mma.sync, whose columns are ours

struct Problem {
  CUtensorMap weight;
  const void *x, *bias, *residual, *norm_weight;
  const float* scales; // [columns of the weight, groups]
  void* y;
  std::int64_t x_stride, residual_stride, y_stride; // of numbers
  int rows, inner, width;                           // width: of y
  int groups, group_shift;                          // a group of scales is of 2^group_shift numbers
  float epsilon;
  bool is_gated;  // y = silu(gate) up, the weight has gate [width, inner] before up
  int ring_bytes; // of the stages that are used, and at least sum_bytes
  // Whether the next kernel may start once all of the weight is on its way, and not only when x is here.
  bool starts_next_early;
};

// How a block is laid out. Weight: what its codes are. lines: of 128 bytes a column of the weight, in a stage of the
// ring.
template <class WeightOf, int of_columns, int of_lines, int of_stages, bool is_normed, int of_blocks>
struct Layout {
  using Weight = WeightOf;
  static constexpr int rows = rows_of_x, columns = of_columns, column_tiles = columns / tile_columns;
  static constexpr int stages = of_stages, lines = of_lines;
  static constexpr bool normed = is_normed;
  static constexpr int words = Weight::words;                      // of x, for each word of a line
  static constexpr int steps = 4 * lines, step_inner = 16 * words; // of a stage; and numbers of a step
  static constexpr int chunk = steps * step_inner;                 // of the inner dimension
  static constexpr int stage_bytes = lines * columns * box_row_bytes;
  static constexpr int sum_stride = columns + 4; // no two threads of a store share a bank
  static constexpr int blocks = of_blocks;       // that have to fit on a multiprocessor
  // Whether codes are multiplied with their offset, which sums of x take from the products again.
  static constexpr bool keeps_offset = Weight::has_groups;
  static constexpr int x_pad = 16 * words; // bytes behind a row of x, so that no two threads of a load share a bank
  static_assert(columns % tile_columns == 0 && steps % warps == 0);
  static constexpr int sum_bytes = warps * rows * sum_stride * 4; // at the end they are where the ring was
  static_assert(sum_bytes <= stages * stage_bytes);
};

// Behind it come the ring, whose stages TMA wants at multiples of 1024 bytes, and what SmallOperands has.
template <class L>
struct alignas(1024) Shared {
  Barrier full[L::stages], empty[L::stages];
  float squares[warps][L::rows]; // by who added them

  __device__ char* ring(int stage) { return reinterpret_cast<char*>(this + 1) + stage * L::stage_bytes; }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

__device__ inline void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(consumers) : "memory");
}

template <int words>
__device__ void load_words(const char* from, std::uint32_t (&to)[words]) {
  using Words = std::conditional_t<words == 1, std::uint32_t, std::conditional_t<words == 2, uint2, uint4>>;
  const Words all = *reinterpret_cast<const Words*>(from);
  const auto* each = reinterpret_cast<const std::uint32_t*>(&all);
#pragma unroll
  for (int i = 0; i < words; ++i) to[i] = each[i];
}

// What a block computes: outputs from `first` on, of chunks [begin, end) of the inner dimension.
template <class L>
struct Part {
  int split, rank, outputs, first, begin, end;

  __device__ explicit Part(const Problem& p)
      : split(Cluster::size()), rank(Cluster::rank()), outputs(p.is_gated ? L::columns / 2 : L::columns),
        first(static_cast<int>(blockIdx.x) / split * outputs) {
    const int chunks = (p.inner + L::chunk - 1) / L::chunk;
    begin = chunks * rank / split, end = chunks * (rank + 1) / split;
  }
  __device__ int count() const { return end - begin; }
  __device__ int inner_begin() const { return begin * L::chunk; }
  // Of the inner dimension, as far as it goes.
  __device__ int inner_count(const Problem& p) const { return min(end * L::chunk, p.inner) - inner_begin(); }
};

template <class L>
__device__ void load_weight(Shared<L>& s, const Problem& p, const Part<L>& part, int number) {
  const int stage = number % L::stages;
  s.full[stage].arrive_and_expect_tx(L::stage_bytes);
  hopper::tma_load_once(s.ring(stage), p.weight, 0, part.first, 0, (part.begin + number) * L::lines, s.full[stage]);
}

#endif

} // namespace fvlm::plugins::streamed
