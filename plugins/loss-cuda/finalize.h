// finalize.h: the per-row work before and after the fused logits-and-softmax kernel (softmax_stats.h): shifts, losses,
// and the gradient at the label.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_rows.h"
#include "softcap.h"

namespace fvlm::plugins {

// Token rows. All matrices are bfloat16 with base addresses and row strides that are multiples of 16 bytes; width is a
// multiple of 8.
struct LossTokens {
  std::int64_t count = 0, width = 0, vocab = 0;
  Matrix hidden, weight;
  const std::int64_t* targets = nullptr;
  const float* known_lse = nullptr; // logsumexp from the forward; NULL: still to be computed
  float* shifts = nullptr;
  Softcap softcap{};
};

// Computes the shifts for softmax_stats(): infinite without a target; else the known logsumexp, or the label's logit
// plus headroom.
void compute_shifts(const Device& device, const LossTokens& tokens);

// Inputs and outputs for the rows of a chunk once their exponentials are computed.
struct Finalization {
  const float* parts = nullptr; // partial sums per row
  std::int64_t part_count = 0;
  float *losses = nullptr, *lse = nullptr; // outputs; NULL: not required

  const float* d_losses = nullptr; // if not NULL, all that follows is needed for the gradients
  Matrix exponentials;             // in and out: the row's total is subtracted at the label. With a
                                   // softcap both are times its derivative
  Matrix scaled_hidden;            // out: hidden times factor, zeros without a target
  float* factors = nullptr;        // out: exponentials times this factor are the gradients of the logits
};
void finalize(const Device& device, const LossTokens& tokens, const Finalization& settlement);

// Multiplies each row by its factor.
void scale_rows(const Device& device, const Matrix& matrix, std::int64_t rows, std::int64_t width,
                const float* factors);

} // namespace fvlm::plugins
