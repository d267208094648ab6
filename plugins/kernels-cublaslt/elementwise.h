// elementwise.h: elementwise kernels around cuBLASLt's products: bias and GELU where no epilogue computes them, GELU's
// derivative, column sums (d_bias); and two helpers for timing.
#pragma once

#include "common/cuda_rows.h"
#include "common/gelu_form.h"

namespace fvlm::plugins {

// y = gelu(sum + bias), each part optional.
struct BiasGelu {
  Rows sum, y;            // y may overwrite the sum
  const void* bias;       // NULL: already added
  bool gelu, writes_back; // writes_back: also stores sum + bias where the sum was
  GeluForm form;
};
void add_bias_gelu(const Device& device, const Shape& shape, const BiasGelu& add_bias_gelu);

// d *= the derivative of GELU at x.
struct GeluGradient {
  Rows x, d;
  GeluForm form;
};
void gelu_gradient(const Device& device, const Shape& shape, const GeluGradient& gradient);
// The same, with the column sums of d.
void gelu_gradient(const Device& device, const Shape& shape, const GeluGradient& gradient, const GradientSums& sums);

// Sums over rows.
void column_sums(const Device& device, const Shape& shape, const Rows& rows, const GradientSums& sums);

// Fills operands with pseudo-random values between -1 and 1, to time products on.
void fill_random(cudaStream_t stream, fvlm_dtype dtype, void* data, std::int64_t count);

// Keeps the stream busy for a while.
void delay_stream(cudaStream_t stream, double seconds);

} // namespace fvlm::plugins
