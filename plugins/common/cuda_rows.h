// cuda_rows.h: host-side descriptions that row-wise CUDA kernels take: strided rows, the stream to launch on, and the
// gradients of parameters that are summed over rows.
#pragma once

#include <fvlm/cuda.hpp>

#include <algorithm>
#include <cstdint>

namespace fvlm::plugins {

// [rows, width]: the first element and the row stride in elements.
struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
};

struct Shape {
  fvlm_dtype dtype;
  std::int64_t rows, width;
  bool vectorized; // every row starts at a multiple of 16 bytes and its width is a multiple of 16 bytes
};

struct Device {
  cudaStream_t stream;
  int multiprocessors;
  bool has_clusters = false;
};

// Blocks of a kernel that sums over rows: per multiprocessor, and for the whole device.
inline constexpr int summing_blocks = 4;

inline std::int64_t max_summing_blocks(int multiprocessors) {
  return summing_blocks * static_cast<std::int64_t>(multiprocessors);
}

// Up to three gradients of parameters (d_weight, d_bias, column sums of d_x) that a kernel sums over its rows. Each
// block writes partial sums to the call's workspace, and the block that arrives last adds them in a fixed order, so the
// result is deterministic and needs no second launch. The arrival counters are in the same workspace: calls share no
// state and may run on several streams at once.
struct GradientSums {
  void* out[3] = {}; // [width]; NULL: no gradient required
  fvlm_dtype type{};
  bool accumulate = false;
  long long* arrivals = nullptr;
  float* parts = nullptr;

  __host__ __device__ bool required() const { return out[0] || out[1] || out[2]; }

  // Width of a slice: the columns whose partial sums have an arrival counter of their own.
  static constexpr std::int64_t min_slice = 32, max_slice = 256, max_width = min_slice * 65535;

  // Takes the workspace for kernels that sum by columns, and for those that write `full_width_parts` partial sums of
  // all columns in at most 16 slices.
  void allocate(sdk::Workspace& workspace, std::int64_t width, int parameters, int multiprocessors,
                std::int64_t full_width_parts = 0) {
    arrivals = workspace.take<long long>(std::max<std::int64_t>(16, (width + min_slice - 1) / min_slice)).data();
    const std::int64_t column_kernel = max_summing_blocks(multiprocessors) * max_slice, whole = width + 16 * 4;
    parts = workspace.take<float>(parameters * std::max(column_kernel, full_width_parts * whole)).data();
  }
};

// For a call without rows: zeros the gradients unless they are accumulated into.
inline void clear(const Device& device, const GradientSums& sums, std::size_t bytes) {
  for (void* each : sums.out)
    if (each && !sums.accumulate) sdk::check_cuda(cudaMemsetAsync(each, 0, bytes, device.stream), "cudaMemsetAsync");
}

} // namespace fvlm::plugins
