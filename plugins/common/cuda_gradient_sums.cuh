// cuda_gradient_sums.cuh: sums over rows that many blocks have parts of, within one launch; see Sums.
#pragma once

#include "common/cuda_cluster.cuh"
#include "common/cuda_packs.cuh"
#include "common/cuda_rows.h"

namespace fvlm::plugins {

inline constexpr int sum_threads = 256; // of every block that sums

// Columns of parameters' gradients that the same blocks have parts of. All threads of those blocks call begin_sums(),
// then put() for what the block has summed, and finish_sums(). put() and finish_sums() are there once for all kernels
// of a file: they cost more to compile than to call.
struct Slice {
  int index;              // of the slice
  int part, parts;        // which part this block has, and of how many
  int parameters;         // whose gradients are summed
  int width;              // columns of each, a multiple of four
  std::int64_t first;     // column of the rows
  std::int64_t row_width; // behind which there are none

  __device__ float* data(const GradientSums& sums, int of_part) const {
    return sums.parts + (static_cast<std::int64_t>(index) * parts + of_part) * parameters * width;
  }
};

// An arrival counter begins near the largest number that there is. The workspace may hold anything before: that is
// less. When all have arrived it is 0 again.
inline constexpr long long no_arrivals = 0x7fffffffffff0000;

__device__ inline void begin_sums(const GradientSums& sums, const Slice& slice) {
  if (slice.parts > 1 && threadIdx.x == 0) atomicMax(&sums.arrivals[slice.index], no_arrivals);
  if (slice.part > 0 || !sums.accumulate) return;
  // Whoever adds to the gradients then finds them in the L2.
  constexpr int line = 128 / sizeof(float);
  const int bytes = sums.type.bits / 8;
#pragma unroll 1
  for (int which = 0; which < 3; ++which) {
    void* const out = which == 0 ? sums.out[0] : which == 1 ? sums.out[1] : sums.out[2];
    if (!out) continue;
    const char* from = static_cast<const char*>(out) + slice.first * bytes;
#pragma unroll 1
    for (int column = static_cast<int>(threadIdx.x) * line; column < slice.width; column += sum_threads * line)
      if (slice.first + column < slice.row_width) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + column * bytes));
  }
}

// Calls body with the pointer to a column of a gradient, where it is wanted.
template <class Body>
__device__ void with_gradient(const GradientSums& sums, int which, std::int64_t column, const Body& body) {
  void* const out = which == 0 ? sums.out[0] : which == 1 ? sums.out[1] : sums.out[2];
  if (!out) return;
  if (sums.type.bits == 32)
    body(static_cast<float*>(out) + column);
  else if (sums.type.code == FVLM_BFLOAT)
    body(static_cast<BFloat16*>(out) + column);
  else
    body(static_cast<Half*>(out) + column);
}

// Calls body(pointer to the gradient's element, index) for four columns of a slice, as many of them as there are.
template <class Body>
__device__ void each_gradient(const GradientSums& sums, const Slice& slice, int which, int column, const Body& body) {
  const std::int64_t first = slice.first + column;
  with_gradient(sums, which, first, [&](auto* from) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i < slice.row_width) body(from + i, i);
  });
}

// What sums are added to.
__device__ inline float4 current_gradients(const GradientSums& sums, const Slice& slice, int which, int column) {
  float values[4] = {};
  if (sums.accumulate)
    each_gradient(sums, slice, which, column, [&](auto* at, int i) { values[i] = static_cast<float>(*at); });
  return {values[0], values[1], values[2], values[3]};
}

__device__ inline void write_gradients(const GradientSums& sums, const Slice& slice, int which, int column,
                                       const float4& before, const float4& sum) {
  const float values[4] = {before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w};
  each_gradient(sums, slice, which, column,
                [&](auto* at, int i) { *at = std::remove_pointer_t<decltype(at)>(values[i]); });
}

// Four columns of this block's sums.
static __device__ __noinline__ void store_partial(const GradientSums sums, const Slice slice, int which, int column,
                                                  const float4 sum) {
  if (slice.first + column >= slice.row_width) return;
  if (slice.parts == 1)
    write_gradients(sums, slice, which, column, current_gradients(sums, slice, which, column), sum);
  else
    *reinterpret_cast<float4*>(slice.data(sums, slice.part) + which * slice.width + column) = sum;
}

// Of all blocks the last to come here adds up what was put: so many threads take the parts in turn, each for four
// columns.
static __device__ __noinline__ void add_partials(const GradientSums sums, const Slice slice) {
  if (slice.parts == 1) return;
  constexpr int batch = 8; // loads under way
  __shared__ bool last;
  __shared__ float4 shared[sum_threads];
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (thread == 0) {
    __threadfence();
    auto* counter = reinterpret_cast<unsigned long long*>(&sums.arrivals[slice.index]);
    last = atomicAdd(counter, 1ull) == static_cast<unsigned long long>(no_arrivals + slice.parts - 1);
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  const int all = slice.parameters * slice.width;
  const int lanes = min((all + 3) / 4, sum_threads), row_groups = sum_threads / lanes, lane = thread % lanes,
            row_group = thread / lanes;
  for (int begin = 0; begin < all; begin += 4 * lanes) {
    const int column = begin + 4 * lane, which = column / slice.width, of_slice = column - which * slice.width;
    const bool inside = row_group < row_groups && column < all && slice.first + of_slice < slice.row_width;
    float4 sum{}, before{};
    if (inside) {
      if (row_group == 0) before = current_gradients(sums, slice, which, of_slice);
      const float* from = slice.data(sums, row_group) + column;
      for (int part = row_group; part < slice.parts; part += row_groups * batch, from += row_groups * batch * all) {
        float4 loaded[batch]{};
#pragma unroll
        for (int i = 0; i < batch; ++i)
          if (part + i * row_groups < slice.parts)
            loaded[i] = __ldcg(reinterpret_cast<const float4*>(from + i * row_groups * all));
#pragma unroll
        for (int i = 0; i < batch; ++i) add(sum, loaded[i]);
      }
    }
    shared[thread] = sum;
    __syncthreads();
    if (inside && row_group == 0) {
      for (int other = 1; other < row_groups; ++other) add(sum, shared[other * lanes + lane]);
      write_gradients(sums, slice, which, of_slice, before, sum);
    }
    __syncthreads();
  }
  if (thread == 0) sums.arrivals[slice.index] = 0;
}

} // namespace fvlm::plugins
