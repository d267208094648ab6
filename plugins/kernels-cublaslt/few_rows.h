// few_rows.h: products of few rows, which take no longer than it takes to fetch the weight.
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

struct FewRowsShape {
  fvlm_dtype dtype; // of 16 bits
  std::int64_t rows, inner, width;
  bool across = false; // the weight is [inner, width], as an input gradient has it; else [width, inner]
};

// y = x weight^T + bias + residual + rest, or x weight where it lies across. What has no data is not there.
struct FewRows {
  Rows x, weight, y;
  const void* bias = nullptr;    // [width]
  Rows residual, rest, y_rest{}; // y_rest: what y loses by rounding
  bool gelu = false;             // y = gelu of the sum as it is rounded
  Rows sum{};                    // where that is kept
  Rows slope{};                  // y is multiplied by gelu's derivative there
  Sums sums{};                   // of y over rows
};

// Whether it is made for such a product, and for such operands: of those with gelu's derivative where it can sum rows,
// too, whether that is asked or not, so that y has the same bits. With y_rest it takes others.
bool fits_few_rows(const Device& device, const FewRowsShape& shape);
bool takes_few_rows(const Device& device, const FewRowsShape& shape, const FewRows& operands);

void few_rows(const Device& device, const FewRowsShape& shape, const FewRows& operands);

} // namespace fvlm::plugins
