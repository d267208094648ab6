// cuda_rows.h: what CUDA kernels over rows are told: where rows lie, where to run, and where sums over rows go.
#pragma once

#include <fvlm/cuda.hpp>

#include <algorithm>
#include <cstdint>

namespace fvlm::plugins {

// [rows, width]: the first element, and how many elements lie from row to row.
struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
};

struct Shape {
  fvlm_dtype dtype;
  std::int64_t rows, width;
  bool vectorized; // every row begins at 16 bytes, and its width is a multiple of them
};

struct Device {
  cudaStream_t stream;
  int multiprocessors;
  bool has_clusters = false;
};

// Blocks of a kernel that sums: of a multiprocessor, of all.
inline constexpr int summing_blocks = 4;

inline std::int64_t max_summing_blocks(int multiprocessors) {
  return summing_blocks * static_cast<std::int64_t>(multiprocessors);
}

// Gradients of parameters, which a kernel sums over its rows: three at most. Its blocks leave parts of the sums in the
// call's workspace, and the one that arrives last adds them up, always in the same order. What counts arrivals lies
// beside the parts, so calls share nothing but what they share anyway: they may run on several streams at once.
struct GradientSums {
  void* out[3] = {}; // [width]; NULL: not wanted
  fvlm_dtype type{};
  bool accumulate = false;
  long long* arrivals = nullptr;
  float* parts = nullptr;

  __host__ __device__ bool required() const { return out[0] || out[1] || out[2]; }

  // Of columns whose parts are counted and added by themselves.
  static constexpr std::int64_t min_slice = 32, max_slice = 256, max_width = min_slice * 65535;

  // The room that kernels by columns need, and those of which `wholes` parts have all the columns, in 16 slices at
  // most.
  void allocate(sdk::Workspace& workspace, std::int64_t width, int parameters, int multiprocessors,
                std::int64_t full_width_parts = 0) {
    arrivals = workspace.take<long long>(std::max<std::int64_t>(16, (width + min_slice - 1) / min_slice)).data();
    const std::int64_t column_kernel = max_summing_blocks(multiprocessors) * max_slice, whole = width + 16 * 4;
    parts = workspace.take<float>(parameters * std::max(column_kernel, full_width_parts * whole)).data();
  }
};

// All the gradients are 0, or what they were where the sums are added to them: there are no rows.
inline void clear(const Device& device, const GradientSums& sums, std::size_t bytes) {
  for (void* each : sums.out)
    if (each && !sums.accumulate) sdk::check_cuda(cudaMemsetAsync(each, 0, bytes, device.stream), "cudaMemsetAsync");
}

} // namespace fvlm::plugins
