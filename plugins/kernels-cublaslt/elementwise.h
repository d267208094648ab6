// elementwise.h: what happens before and behind the products: bias and gelu where no epilogue does them, columns' sums.
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

// y = the sum, with the bias added that the product has not added, and through gelu.
struct BiasGelu {
  Rows sum, y;            // may be the same memory
  const void* bias;       // NULL: it is in the sum
  bool gelu, writes_back; // writes_back: the biased sum, to where the sum is
};
void add_bias_gelu(const Device& device, const Shape& shape, const BiasGelu& add_bias_gelu);

// d *= gelu's derivative at x
struct GeluGradient {
  Rows x, d;
};
void gelu_gradient(const Device& device, const Shape& shape, const GeluGradient& gradient);
// The same, with sums of d over rows.
void gelu_gradient(const Device& device, const Shape& shape, const GeluGradient& gradient, const GradientSums& sums);

// Sums over rows.
void column_sums(const Device& device, const Shape& shape, const Rows& rows, const GradientSums& sums);

// Ordinary numbers between -1 and 1, to time products on.
void fill_random(cudaStream_t stream, fvlm_dtype dtype, void* data, std::int64_t count);

// Keeps the stream from going on for a while.
void delay_stream(cudaStream_t stream, double seconds);

} // namespace fvlm::plugins
