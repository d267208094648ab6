// softmax_stats.h: a product that writes exp(logits - shift) and their row sums instead of logits, so that the logits
// are never read or written on their own.
//
// The gradient of a row of logits is a factor times (the row's exponentials, minus their sum at the label), which the
// two gradient products read as they are. The shift has to be known before the product: it is the label's logit plus
// headroom.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_rows.h"
#include "softcap.h"

namespace fvlm::plugins {

struct SoftmaxStats {
  Matrix hidden, weight;         // [rows, width], [vocab, width]
  Matrix out;                    // [rows, vocab]; without data only the sums are computed
  const float* shifts = nullptr; // [rows], in base 2; infinite: the row becomes 0
  float* parts = nullptr;        // [parts, rows]: partial sums of the rows
  std::int64_t rows = 0, width = 0, vocab = 0;
  Softcap softcap{};
};

// Number of partial sums per row, for that many rows and multiprocessors; and the most floats that all partial sums
// take for at most that many rows.
std::int64_t partial_sum_count(int multiprocessors, std::int64_t rows);
std::int64_t max_partial_sums(int multiprocessors, std::int64_t rows);

// out = 2^(logits log2(e) - shifts), in bfloat16, with logits = hidden weight^T. With a softcap the logits are bounded
// and out, but not the sums, is multiplied by the derivative: the gradient with respect to the products. Base addresses
// and row strides are multiples of 16 bytes.
void softmax_stats(const Device& device, const SoftmaxStats& operands);

} // namespace fvlm::plugins
