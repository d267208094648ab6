// gelu_product.h: products on Hopper of short rows. What comes behind a product is computed while others are made:
// gelu, its derivative, or no more than bias and residual.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_rows.h"

namespace fvlm::plugins {

// How many elements are summed up in a product, and how wide results are.
struct GeluProductShape {
  fvlm_dtype dtype;
  std::int64_t rows, inner, width;
};

// Whether there are kernels for this device; and for such operands, if the copy engine can read and write them all.
bool has_gelu_products(fvlm_device device);
bool fits_gelu_product(const GeluProductShape& shape);
bool copy_engine_takes(fvlm_dtype dtype, std::initializer_list<Matrix> matrices);

// y = x weight^T + bias + residual, where the weight is [width, inner]; or x weight, where it is [inner, width], by
// rows.
struct PlainProduct {
  Matrix x, weight, y;
  void* bias = nullptr;
  Matrix residual{}; // may be in the memory of y
  bool by_rows = false;
};
void plain_product(const Device& device, const GeluProductShape& shape, const PlainProduct& operands);

// sum = x weight^T + bias, y = gelu of the sum as it is rounded. x [rows, inner], weight [width, inner].
struct GeluForward {
  Matrix x, weight, sum, y; // a sum in y's memory is not kept
  void* bias = nullptr;     // NULL: none
};
void gelu_forward(const Device& device, const GeluProductShape& shape, const GeluForward& operands);

// d_x = d_y weight * gelu's derivative at x. d_y [rows, inner], weight [inner, width], x and d_x [rows, width].
struct GeluBackward {
  Matrix d_y, weight, x, d_x; // d_x may be in the memory of x
  float* sums = nullptr;      // NULL, or [parts, width] for parts of the sums of d_x over rows
};
void gelu_backward(const Device& device, const GeluProductShape& shape, const GeluBackward& operands);
std::int64_t parts_of_sums(int multiprocessors, const GeluProductShape& shape);

} // namespace fvlm::plugins
