// narrow_gradients.h: both gradients of a linear of few input features, from one pass over d_y.
#pragma once

#include "common/cuda_rows.h"

#include <cstdint>

namespace fvlm::plugins {

// d_y [rows, width], x and d_x [rows, inner], weight and d_weight [width, inner].
struct NarrowGradientsShape {
  fvlm_dtype dtype, gradient_dtype;
  std::int64_t rows, width, inner;
};

struct NarrowGradients {
  Rows d_y, weight, x, d_x;
  void* d_weight; // contiguous
  bool accumulate;
};

// shared_memory: what a block may take, in bytes.
bool narrow_gradients_support(const NarrowGradientsShape& shape, int shared_memory);
// Whether all rows can be accessed 16 bytes at a time.
bool narrow_gradients_take(const NarrowGradients& operands);
std::int64_t narrow_gradients_workspace(int multiprocessors, const NarrowGradientsShape& shape); // bytes
void narrow_gradients(const Device& device, const NarrowGradientsShape& shape, const NarrowGradients& operands,
                      void* workspace);

} // namespace fvlm::plugins
