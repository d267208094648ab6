// finalize.h: what is left to do for rows of tokens before and after their logits have become exponentials.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_rows.h"

namespace fvlm::plugins {

// Rows of tokens. All matrices are in bfloat16 and begin, as do their rows, at multiples of 16 bytes, and width is a
// multiple of 8.
struct LossTokens {
  std::int64_t count = 0, width = 0, vocab = 0;
  Matrix hidden, weight;
  const std::int64_t* targets = nullptr;
  const float* known_lse = nullptr; // NULL: they are to be found
  float* shifts = nullptr;
};

// Fills the shifts of exponentials(): infinite where there is no target, else the known logarithm of the row's sum, or
// somewhat more than the logit of the label.
void compute_shifts(const Device& device, const LossTokens& tokens);

// What a chunk's rows have once their exponentials are there.
struct Finalization {
  const float* parts = nullptr; // of sums
  std::int64_t part_count = 0;
  float *losses = nullptr, *lse = nullptr; // out, where not NULL

  const float* d_losses = nullptr; // where not NULL, all that follows is there for the gradients
  Matrix exponentials;             // in, out: of each row's label the total is taken away
  Matrix scaled_hidden;            // out: hidden times factors, zeros where there is no target
  float* factors = nullptr;        // out: what makes gradients of logits of the row's exponentials
};
void finalize(const Device& device, const LossTokens& tokens, const Finalization& settlement);

// Multiplies rows [rows, width] by their factors.
void scale_rows(const Device& device, const Matrix& matrix, std::int64_t rows, std::int64_t width,
                const float* factors);

} // namespace fvlm::plugins
