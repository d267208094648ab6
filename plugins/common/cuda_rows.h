// cuda_rows.h: what CUDA kernels over rows are told: where rows lie, where to run, and on what way sums over rows go.
#pragma once

#include <fvlm/cuda.hpp>

#include <cstdint>

namespace fvlm::plugins {

// [rows, width]: the first element, and how many elements lie from row to row.
struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
};

// Where the partial sums of parameters' gradients go on their way: [blocks, parameters * width] floats, one row a
// block, which the kernels' launchers fill and sum_parts() adds up. Two parameters at most, the second behind the
// first.
struct Parts {
  float* data = nullptr; // NULL: no gradient is wanted
  int most = 0;          // blocks that there is room for
};

struct Shape {
  fvlm_dtype dtype;
  std::int64_t rows, width;
  bool wide; // every row begins at 16 bytes, and its width is a multiple of them
};

struct Device {
  cudaStream_t stream;
  int multiprocessors;
};

struct Sums {
  Parts parts;
  int blocks; // that have written
  std::int64_t width;
  int parameters;
  void* out[2]; // NULL: not wanted
  fvlm_dtype dtype;
  bool accumulate;
};

void sum_parts(const Device& device, const Sums& sums);

} // namespace fvlm::plugins
