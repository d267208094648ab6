// short_convolution.h: the operands of the short convolution's kernels, with checked pointers and strides, and their
// launch functions.
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

inline constexpr int max_taps = 4;

// Tensors [slots, taps - 1, width]; strides of slots and rows in elements.
struct ConvolutionStates {
  void* data = nullptr;
  std::int64_t slot = 0, row = 0;
};

struct ShortConvolution {
  Rows x, y;
  const void *weight, *bias;                       // bias NULL: none
  const std::int32_t *cu_seqlens, *slots, *starts; // slots and starts NULL: segments begin with zeros
  ConvolutionStates states;
  int segments, taps;
};

struct ShortConvolutionGradients {
  Rows d_y, d_x;
  void *d_weight, *d_bias; // NULL: not required
  fvlm_dtype type;         // of these two
  bool accumulate;
  float* parts; // of their sums, one for each tile of rows: [parts, taps + 1, width]; NULL: neither is required
};

// The most parts that the sums of d_weight and d_bias have.
std::int64_t max_convolution_parts(const Device& device, std::int64_t rows, std::int64_t width);

void short_convolution_forward(const Device& device, const Shape& shape, const ShortConvolution& convolution);
void short_convolution_backward(const Device& device, const Shape& shape, const ShortConvolution& convolution,
                                const ShortConvolutionGradients& gradients);

} // namespace fvlm::plugins
