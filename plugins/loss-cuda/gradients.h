// gradients.h: both gradients of a chunk of rows by one launch, the one's product while the other's is stored.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_rows.h"

namespace fvlm::plugins {

struct GradientsShape {
  std::int64_t rows, width, vocab;
};

// Whether it is made for such a shape; how many bytes of parts of d_hidden it needs for that many rows or fewer.
bool fused_gradients_support(int multiprocessors, const GradientsShape& shape);
std::int64_t fused_gradients_workspace(int multiprocessors);

// d_weight = exponentials^T scaled_hidden, in float32, or added to; d_hidden = exponentials weight times the rows'
// factors. All but d_weight in bfloat16; all matrices begin, as do their rows, at multiples of 16 bytes.
struct FusedGradients {
  Matrix exponentials, weight, scaled_hidden; // [rows, vocab], [vocab, width], [rows, width]
  const float* factors = nullptr;             // [rows]
  Matrix d_hidden, d_weight;                  // [rows, width], [vocab, width]
  bool accumulate = false;
};
void fused_gradients(const Device& device, const GradientsShape& shape, const FusedGradients& operands, void* parts);

} // namespace fvlm::plugins
