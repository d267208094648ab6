// products.h: products of float32 activations with quantized weights, which are converted to float32 block by block.
#pragma once

#include "common/level_table.h"

#include <cstdint>

namespace fvlm::plugins {

constexpr std::int64_t block_columns = 64;    // outputs per block
constexpr std::int64_t block_depth = 128;     // inner dimension per block: 32 KiB of weights in float32
constexpr std::int64_t block_tokens = 480;    // tokens per dequantized block
constexpr std::int64_t max_skinny_tokens = 8; // up to here, weights are converted as they are read, without a block
constexpr std::int64_t scratch_floats = block_columns * (2 * block_depth + block_tokens);

struct QuantizedWeight {
  const void* codes;   // [rows, stride] bytes
  const float* scales; // [rows, groups]
  std::int64_t rows, cols, stride, group, groups;
};

// y[t, begin .. end) = x[t] W^T + bias for tokens [0, tokens). x_stride and y_stride are row strides in elements.
struct LinearTask {
  QuantizedWeight weight;
  const float* x;
  std::int64_t x_stride, tokens, begin, end; // at most block_columns outputs; block_tokens tokens
  const void* bias;                          // of the type of y, or NULL
  void* y;
  std::int64_t y_stride;
  bool bfloat16; // whether y and bias are bfloat16 instead of float32
  float* scratch;
};

struct SchemeKernels {
  void (*linear)(const LinearTask&);          // y = x W^T + bias
  void (*linear_skinny)(const LinearTask&);   // the same for at most max_skinny_tokens tokens, without scratch
  void (*linear_gradient)(const LinearTask&); // y[t, begin .. end) = x[t] W, without bias
};
struct QuantizedKernels {
  SchemeKernels int8, int4;
  void (*to_float32)(const std::uint16_t* from, std::int64_t count, float* to); // bfloat16 to float
};

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(QuantizedKernels, quantized_kernels)
