// launches.h: what the plugin's face asks of its kernels: pointers and strides that were checked, and where to run.
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

struct NormForward {
  Rows x, residual, y, sum;
  const void *weight, *bias; // bias NULL: rmsnorm
  float *inverse, *mean;     // NULL: no backward follows
  float epsilon;
};

struct NormBackward {
  Rows d_y, d_sum, s, d_x;
  const void* weight;
  const float *inverse, *mean; // mean NULL: rmsnorm
};

struct Swiglu {
  Rows gate, up, y, d_y, d_gate, d_up;
};

struct BiasGelu {
  Rows x, y, d_y, d_x;
  const void* bias;
};

struct Layerscale {
  Rows x, residual, y, d_y, d_x;
  const void* scale;
};

struct Rope {
  Rows x, out;
  std::int64_t x_head, out_head; // elements from head to head
  const std::int32_t* positions;
  std::int64_t positions_stride;
  std::int64_t rows;
  int heads, head_dim, rotary_dim;
  double log2_theta;
  bool inverse;
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

// The most blocks that a kernel with partial sums is given: how much workspace they need.
int most_parts(std::int64_t rows, int multiprocessors);

void norm_forward(const Device& device, const Shape& shape, const NormForward& norm);

// Those with Parts return how many blocks have written there.
int norm_backward(const Device& device, const Shape& shape, const NormBackward& norm, const Parts& parts);
void swiglu_forward(const Device& device, const Shape& shape, const Swiglu& swiglu);
void swiglu_backward(const Device& device, const Shape& shape, const Swiglu& swiglu);
void bias_gelu_forward(const Device& device, const Shape& shape, const BiasGelu& gelu);
int bias_gelu_backward(const Device& device, const Shape& shape, const BiasGelu& gelu, const Parts& parts);
void layerscale_forward(const Device& device, const Shape& shape, const Layerscale& layerscale);
int layerscale_backward(const Device& device, const Shape& shape, const Layerscale& layerscale, const Parts& parts);
void rope(const Device& device, fvlm_dtype dtype, bool wide, const Rope& rope);
void sum_parts(const Device& device, const Sums& sums);

} // namespace fvlm::plugins
