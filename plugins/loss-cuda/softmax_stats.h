// softmax_stats.h: a chunk's logits as exponentials, which products then read as they are.
//
// The gradient of a row of logits is a factor times (exponentials of the row, the total taken from the label's): no
// kernel has to go through the logits once more. Rows are shifted by what is known before: their label's logit.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_rows.h"

namespace fvlm::plugins {

struct SoftmaxStats {
  Matrix hidden, weight;         // [rows, width], [vocab, width]
  Matrix out;                    // [rows, vocab]; without data: only sums are wanted
  const float* shifts = nullptr; // [rows], in powers of 2; infinite: the row becomes 0
  float* parts = nullptr;        // [parts, rows] of the rows' sums
  std::int64_t rows = 0, width = 0, vocab = 0;
};

// How many parts the sums of that many rows have, on so many multiprocessors; and how many sums that is, for no more
// rows than these.
std::int64_t partial_sum_count(int multiprocessors, std::int64_t rows);
std::int64_t max_partial_sums(int multiprocessors, std::int64_t rows);

// out = 2^(hidden weight^T log2(e) - shifts). In bfloat16; all matrices begin, as do their rows, at multiples of 16
// bytes.
void softmax_stats(const Device& device, const SoftmaxStats& operands);

} // namespace fvlm::plugins
