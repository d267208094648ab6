// LFM2's convolution of each feature by itself that reaches back over the last few rows of a sequence: of rows that
// hold B, C and x side by side it makes C * conv(B * x). What it convolves is rounded as pages keep it, and summed in
// float32 or wider. It is ATen's and needs no plugin.
#pragma once
#include "ops/recurrence.h"
#include "ops/tape.h"

namespace fvlm::ops {

// [reach, rows, 1] in the type of `options`: for 1 to `reach` rows before, 1 where that row is of the same segment,
// else 0. Segments lie one behind the other from the first row on.
at::Tensor rows_within_segments(const at::Tensor& cu_seqlens, int64_t rows, int64_t reach,
                                const at::TensorOptions& options);

// `within`: rows_within_segments() with a reach of one less than the taps.
Value gated_convolution(Tape& tape, const Value& gates_and_x, const ConvolutionTaps& taps, const at::Tensor& within);

// Where the rows before those of a pass lie in the pages of their sequences.
struct EarlierRows {
  struct Places {
    at::Tensor pages, rows; // int64 [rows]
    at::Tensor missing;     // bool [rows, 1]: the sequence begins behind it
  };
  std::vector<Places> before; // by their distance less one
  // `indices`: int32 [rows], of each row in its sequence.
  EarlierRows(const at::Tensor& indices, const at::Tensor& sequences, const at::Tensor& page_table, int64_t page_rows,
              int64_t reach);
};

// The same for rows that continue sequences, without a gradient. Pages [pages, page_rows, width] hold B * x, where that
// of these rows is written first, at `places`, int64 [2, rows].
at::Tensor append_and_convolve(const at::Tensor& gates_and_x, const ConvolutionTaps& taps, const at::Tensor& pages,
                               const at::Tensor& places, const EarlierRows& earlier);

} // namespace fvlm::ops
