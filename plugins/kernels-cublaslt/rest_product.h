// rest_product.h: products of few rows whose sums with a residual keep what they lose by rounding.
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

struct RestProductShape {
  fvlm_dtype dtype; // of 16 bits
  std::int64_t rows, inner, width;
};

// y + y_rest = x weight^T + bias + residual + rest, y of it as much as its type holds.
struct RestProduct {
  Rows x, weight, residual, rest, y, y_rest; // rest.data NULL: no rest came
  const void* bias;                          // [width] or NULL
};
void rest_product(const Device& device, const RestProductShape& shape, const RestProduct& operands);

} // namespace fvlm::plugins
