// gradients.h: d_hidden and d_weight of a chunk of rows in one launch: one product runs while the results of the other
// are stored.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_rows.h"

namespace fvlm::plugins {

struct GradientsShape {
  std::int64_t rows, width, vocab;
};

// Whether the kernel supports the shape; bytes of workspace for partial sums of d_hidden, for any shape.
bool fused_gradients_support(int multiprocessors, const GradientsShape& shape);
std::int64_t fused_gradients_workspace(int multiprocessors);

// d_weight = exponentials^T scaled_hidden in float32, or accumulated into; d_hidden = exponentials weight, times the
// rows' factors. All operands but d_weight are bfloat16; base addresses and row strides are multiples of 16 bytes.
struct FusedGradients {
  Matrix exponentials, weight, scaled_hidden; // [rows, vocab], [vocab, width], [rows, width]
  const float* factors = nullptr;             // [rows]
  Matrix d_hidden, d_weight;                  // [rows, width], [vocab, width]
  bool accumulate = false;
};
void fused_gradients(const Device& device, const GradientsShape& shape, const FusedGradients& operands, void* parts);

} // namespace fvlm::plugins
