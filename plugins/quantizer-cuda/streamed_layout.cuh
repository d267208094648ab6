// streamed_layout.cuh: how a block of streamed_product.cuh is laid out, and which part of the product is its own.
#pragma once

#include "common/cuda_hopper.cuh"
#include "common/cuda_tensor_map.h"

namespace fvlm::plugins::streamed {

using hopper::Barrier, hopper::box_row_bytes;

constexpr int warps = 8, consumers = warps * warp_size, threads = consumers + warp_size;
// Of a product of mma.sync: columns of the weight, and rows of x, each of which takes four of its eight columns.
constexpr int tile_columns = 16, tile_rows = 2;
constexpr int digits = 3; // of a number of x, which is an integer of 23 bits: see Digits
constexpr float most_integer = (1 << 22) - (1 << 16);

struct Problem {
  CUtensorMap weight;
  const void *x, *bias, *residual, *norm_weight;
  const float* scales; // [columns of the weight, groups]
  void* y;
  std::int64_t x_stride, residual_stride, y_stride; // of numbers
  int rows, inner, width;                           // width: of y
  int groups;                                       // of columns that share a scale
  float epsilon;
  bool is_gated;    // y = silu(gate) up, the weight has gate [width, inner] before up
  int ring_bytes;   // of the stages that are used, and at least sum_bytes
  int on_their_way; // stages that a block has requested and not received: requests for x queue behind them
  // Whether the next kernel may start once all of the weight is on its way, and not only when x is here.
  bool starts_next_early;
};

// Of int4, columns that share a scale. A step of a warp is one of them.
constexpr int group = 128;

// How a block is laid out. bits: of a code. lines: of 128 bytes a column of the weight, in a stage of the ring.
// row_tiles: for how many rows of x.
template <int of_bits, int of_columns, int of_lines, int of_stages, int of_row_tiles>
struct Layout {
  static constexpr int bits = of_bits, columns = of_columns, row_tiles = of_row_tiles, rows = row_tiles * tile_rows;
  static constexpr int stages = of_stages, lines = of_lines, line_inner = box_row_bytes * 8 / bits;
  static constexpr int chunk = lines * line_inner; // of the inner dimension, in a stage
  static constexpr bool has_groups = bits == 4;
  static constexpr int loads = has_groups ? 2 : 1; // of 32 bytes of each column, in a step
  static constexpr int steps_of_line = 4 / loads, steps = lines * steps_of_line,
                       step_inner = line_inner / steps_of_line;
  // Steps are shared by warps, and if there are less of them, columns as well.
  static constexpr int step_warps = steps < warps ? steps : warps, column_warps = warps / step_warps;
  static constexpr int column_tiles = columns / column_warps / tile_columns; // of a warp
  static constexpr int products = 8 / bits;                                  // of mma.sync for what a load brings
  static constexpr int stage_bytes = lines * columns * box_row_bytes;
  static constexpr int sum_stride = columns + 4; // no two threads of a store share a bank
  static constexpr int x_pad = 16 * products;    // bytes behind digits of x: no two threads of a load share a bank
  // What 1 in a product of integers stands for, where the largest number of x is 1. Codes of int4 come times 16.
  static constexpr float unit = 1.0f / most_integer / (bits == 4 ? 16 : 1);
  static_assert(column_tiles * column_warps * tile_columns == columns && steps % step_warps == 0);
  static constexpr int sum_bytes = step_warps * rows * sum_stride * 4; // at the end they are where the ring was
  static_assert(sum_bytes <= stages * stage_bytes);
};

// Behind it come the ring, whose stages TMA wants at multiples of 1024 bytes, and what SmallOperands has.
template <class L>
struct alignas(1024) Shared {
  Barrier full[L::stages], empty[L::stages];
  float squares[warps][L::rows];  // by who added them
  std::uint32_t largest[L::rows]; // of x, as bits without the sign; 0 to begin with
  float units[L::rows];           // what an integer of x stands for

  __device__ char* ring(int stage) { return reinterpret_cast<char*>(this + 1) + stage * L::stage_bytes; }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

__device__ inline void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(consumers) : "memory");
}

// What a block computes: outputs from `first` on.
template <class L>
struct Part {
  int outputs, first, count; // count: of chunks of the inner dimension

  __device__ explicit Part(const Problem& p)
      : outputs(p.is_gated ? L::columns / 2 : L::columns), first(static_cast<int>(blockIdx.x) * outputs),
        count((p.inner + L::chunk - 1) / L::chunk) {}
};

template <class L>
__device__ void load_weight(Shared<L>& s, const Problem& p, const Part<L>& part, int number) {
  const int stage = number % L::stages;
  s.full[stage].arrive_and_expect_tx(L::stage_bytes);
  hopper::tma_load_once(s.ring(stage), p.weight, 0, part.first, 0, number * L::lines, s.full[stage]);
}

#endif

} // namespace fvlm::plugins::streamed
