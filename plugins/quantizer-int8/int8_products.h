// int8_products.h: products of float rows with int8 weights, by blocks whose codes become floats on the way.
#pragma once

#include "common/level_table.h"

#include <cstdint>

namespace fvlm::plugins {

constexpr std::int64_t block_columns = 64; // outputs of a block
constexpr std::int64_t block_depth = 128;  // summands at a time: 32 KiB of weights as floats
constexpr std::int64_t block_tokens = 480; // what a block's weights are unpacked for
constexpr std::int64_t few_tokens = 8;     // below, weights are used as they are read
constexpr std::int64_t scratch_floats = block_columns * (block_depth + block_tokens);

struct Int8Weight {
  const std::int8_t* codes; // [rows, cols]
  const float* scales;      // [rows]
  std::int64_t rows, cols;
};

// y[t, begin .. end) = x[t] W^T + bias for tokens [0, tokens). Rows of x are x_stride apart, of y y_stride.
struct LinearTask {
  Int8Weight weight;
  const float* x;
  std::int64_t x_stride, tokens, begin, end; // at most block_columns outputs; block_tokens tokens
  const void* bias;                          // of y's type, or NULL
  void* y;
  std::int64_t y_stride;
  bool bfloat16; // y and bias
  float* scratch;
};

struct Int8Kernels {
  void (*linear)(const LinearTask&);     // y = x W^T + bias
  void (*linear_few)(const LinearTask&); // the same for at most few_tokens tokens, without scratch
  void (*gradient)(const LinearTask&);   // y[t, begin .. end) = x[t] W, without bias
  void (*widen)(const std::uint16_t* from, std::int64_t count, float* to); // bfloat16 to float
};

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(Int8Kernels, int8_kernels)
