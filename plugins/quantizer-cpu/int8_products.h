// int8_products.h: products of int8 activations with int8 weights, which add up as integers.
#pragma once

#include "common/level_table.h"

#include <cstdint>

namespace fvlm::plugins {

constexpr std::int64_t int8_tokens = 4; // tokens that read a row of the weight together

// Sums of products of codes for output features [begin, end) and up to int8_tokens tokens: sums[t * stride + row].
// Codes of x behind its columns are 0, up to x_stride, a multiple of 64.
struct Int8Task {
  const std::int8_t *weight, *x; // [rows, cols]; [tokens, x_stride]
  std::int64_t cols, x_stride, tokens, begin, end;
  const std::int32_t* x_sums; // of the codes of each token, which the unsigned form of the weight needs
  std::int32_t* sums;
  std::int64_t stride;
};

struct Int8Kernels {
  void (*plain)(const Int8Task&);
  void (*vnni)(const Int8Task&); // for machines with AVX512-VNNI; NULL where the level has none
};

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(Int8Kernels, int8_kernels)
