// cuda_gradient_sums.cuh: the device side of GradientSums: sums over rows that several blocks share, finished within
// one launch by the block that arrives last.
#pragma once

#include "common/cuda_cluster.cuh"
#include "common/cuda_packs.cuh"
#include "common/cuda_rows.h"

namespace fvlm::plugins {

inline constexpr int sum_threads = 256; // block size of every kernel that sums

// A slice of columns whose partial sums several blocks hold. All threads of these blocks call begin_sums(), then
// store_partial() with the block's sums, then add_partials(). The last two are not inlined: one copy serves all
// kernels of a file, because they cost more to compile than to call.
struct Slice {
  int index;              // index of the slice
  int part, parts;        // this block's part, and how many parts there are
  int parameters;         // number of gradients that are summed
  int width;              // columns per gradient, a multiple of four
  std::int64_t first;     // first column in the row
  std::int64_t row_width; // columns at and past this index do not exist

  __device__ float* data(const GradientSums& sums, int of_part) const {
    return sums.parts + (static_cast<std::int64_t>(index) * parts + of_part) * parameters * width;
  }
};

// Initial value of an arrival counter, close to the largest integer. The workspace may hold anything before, which
// atomicMax then replaces, as it is smaller. After the last arrival the counter is 0 again.
inline constexpr long long no_arrivals = 0x7fffffffffff0000;

__device__ inline void begin_sums(const GradientSums& sums, const Slice& slice) {
  if (slice.parts > 1 && threadIdx.x == 0) atomicMax(&sums.arrivals[slice.index], no_arrivals);
  if (slice.part > 0 || !sums.accumulate) return;
  // Prefetches the gradients into the L2 for the block that will add to them.
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

// Calls body with a pointer to a column of one of the gradients, if that gradient is required.
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

// Calls body(pointer to the element, index) for up to four columns of a slice.
template <class Body>
__device__ void each_gradient(const GradientSums& sums, const Slice& slice, int which, int column, const Body& body) {
  const std::int64_t first = slice.first + column;
  with_gradient(sums, which, first, [&](auto* from) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i < slice.row_width) body(from + i, i);
  });
}

// The values to accumulate into, or zeros.
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

// Writes four columns of this block's sums: to the workspace, or directly to the gradient if there is one part only.
static __device__ __noinline__ void store_partial(const GradientSums sums, const Slice slice, int which, int column,
                                                  const float4 sum) {
  if (slice.first + column >= slice.row_width) return;
  if (slice.parts == 1)
    write_gradients(sums, slice, which, column, current_gradients(sums, slice, which, column), sum);
  else
    *reinterpret_cast<float4*>(slice.data(sums, slice.part) + which * slice.width + column) = sum;
}

// The last block to arrive adds up the partial sums. Its threads form row groups that take the parts round-robin, four
// columns per thread.
static __device__ __noinline__ void add_partials(const GradientSums sums, const Slice slice) {
  if (slice.parts == 1) return;
  constexpr int batch = 8; // loads in flight
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
