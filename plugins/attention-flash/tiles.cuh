// tiles.cuh: tiles of rows in shared memory, and mma.sync products of a warp on them.
//
// Fragment layouts of mma.m16n8k16: an A fragment is 16 rows by 16 columns in four registers per thread, a B fragment
// 16 by 8 in two. The accumulator is 16 rows by 8 columns: thread t holds columns 2 (t % 4) and the next, of rows t / 4
// and t / 4 + 8.
#pragma once

#include "common/cuda_copies.cuh"
#include "common/cuda_math.cuh"
#include "common/cuda_mma.cuh"
#include "common/cuda_packs.cuh"
#include "problem.h"

namespace fvlm::plugins {

using sdk::BFloat16, sdk::Half;
using std::int64_t;

constexpr int pack = 8, packs = head_dim / pack; // elements of 16 bytes, and how many such packs a row has
constexpr int row_bytes = head_dim * 2;
constexpr int blocks = head_dim / 8; // of 8 columns

__device__ inline int thread_index() {
  return static_cast<int>(threadIdx.x);
}
__device__ inline int lane_index() {
  return static_cast<int>(threadIdx.x % warp_size);
}
__device__ inline int warp_index() {
  return static_cast<int>(threadIdx.x / warp_size);
}
// Index within the quad of threads that hold the same accumulator rows.
__device__ inline int lane_in_quad() {
  return static_cast<int>(threadIdx.x % 4);
}
// The row, and the quarter of it, that this thread copies into a tile. Eight consecutive lanes take eight different
// rows, which uses all shared memory banks.
__device__ inline int copy_row() {
  return static_cast<int>(threadIdx.x / warp_size * 8 + threadIdx.x % 8);
}
__device__ inline int copy_quarter() {
  return static_cast<int>(threadIdx.x % warp_size / 8);
}

// Rows of 64 elements. The packs of a row are swizzled, so that neighbouring rows use different banks.
struct Tile {
  char* memory;

  template <class T = char>
  __device__ T* at(int row, int pack_index) const {
    return reinterpret_cast<T*>(memory + row * row_bytes + ((pack_index ^ (row & 7)) << 4));
  }
  __device__ Tile rows_from(int row) const { return {memory + row * row_bytes}; } // row has to be a multiple of 8
};

struct Fragment {
  std::uint32_t at[4];
};

template <bool transposed>
__device__ Fragment load_fragment(std::uint32_t from) {
  Fragment f;
  plugins::load_matrices<transposed>(f.at, from);
  return f;
}

// Loads four 8 x 8 matrices by ldmatrix.x4; thread t passes the address of row t % 8 of matrix t / 8. `below`: which of
// the matrices (1 or 2) is the one below the first; the other is to its right. Stepping by 16 columns flips address
// bits, as tiles are aligned to 128 bytes.
template <bool transposed, int below>
__device__ Fragment load_matrices(const Tile& tile, int row, int step) {
  const int lane = lane_index(), column_half = lane / (8 * (3 - below)) % 2, row_in_matrix = lane % 8;
  const std::uint32_t at = shared_address(tile.memory) +
                           static_cast<std::uint32_t>((lane / (8 * below) % 2 * 8 + row_in_matrix) * row_bytes +
                                                      ((column_half ^ row_in_matrix) << 4));
  return load_fragment<transposed>((at ^ static_cast<std::uint32_t>(step << 5)) +
                                   static_cast<std::uint32_t>(row * row_bytes));
}

// Rows `row` to row + 15, columns 16 step to 16 step + 15, as an A fragment.
__device__ inline Fragment load_a(const Tile& tile, int row, int step) {
  return load_matrices<false, 1>(tile, row, step);
}
// Two B fragments whose columns are the tile's rows `row` to row + 7 and row + 8 to row + 15.
__device__ inline Fragment load_b(const Tile& tile, int row, int step) {
  return load_matrices<false, 2>(tile, row, step);
}
// Two B fragments whose rows are the tile's rows; their columns are 16 pair to 16 pair + 7 and the next 8.
__device__ inline Fragment load_b_transposed(const Tile& tile, int row, int pair) {
  return load_matrices<true, 1>(tile, row, pair);
}

// Two products with neighbouring columns.
template <class T>
__device__ void mma_16x8x16(float (&one)[4], float (&next)[4], const Fragment& a, const Fragment& b) {
  mma_16x8x16<T>(one, a.at, b.at[0], b.at[1]);
  mma_16x8x16<T>(next, a.at, b.at[2], b.at[3]);
}

// Column, within a block of 8, of accumulator element i of this thread.
__device__ inline int column_of(int i) {
  return lane_in_quad() * 2 + i % 2;
}

// Converts two neighbouring accumulators to an A fragment.
template <class T>
__device__ Fragment to_a_fragment(const float (&one)[4], const float (&next)[4]) {
  return {{rounded<T>(one[0], one[1]), rounded<T>(one[2], one[3]), rounded<T>(next[0], next[1]),
           rounded<T>(next[2], next[3])}};
}

// Writes 16 accumulator rows, scaled by `factor` (of rows t / 4 and t / 4 + 8), into a tile, which the warp may read
// afterwards.
template <class T>
__device__ void store_accumulators(const Tile& tile, const float (&x)[blocks][4], const float (&factor)[2]) {
#pragma unroll
  for (int b = 0; b < blocks; ++b)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      tile.at<std::uint32_t>(lane_index() / 4 + 8 * h, b)[lane_in_quad()] =
          rounded<T>(x[b][2 * h] * factor[h], x[b][2 * h + 1] * factor[h]);
  __syncwarp();
}

// Sum over four threads with that distance: 1 for a quad that holds the same accumulator rows, 8 for the threads that
// copy a row.
template <int lane_mask = 1>
__device__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, lane_mask);
  return value + __shfl_xor_sync(0xffffffffu, value, 2 * lane_mask);
}
__device__ inline float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

template <class T>
__device__ T* at(const HeadRows& rows, int row, int head) {
  return reinterpret_cast<T*>(rows.data +
                              static_cast<std::uint64_t>(static_cast<std::uint32_t>(row)) * rows.row_stride +
                              static_cast<std::uint64_t>(static_cast<std::uint32_t>(head)) * rows.head_stride);
}

// Dot product of two packs in float32.
template <class T>
__device__ float dot(const Pack<T, pack>& one, const Pack<T, pack>& other) {
  float a[pack], b[pack], sum = 0;
  one.widen(a);
  other.widen(b);
#pragma unroll
  for (int i = 0; i < pack; ++i) sum += a[i] * b[i];
  return sum;
}

} // namespace fvlm::plugins
