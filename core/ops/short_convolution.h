// LFM2's and LFM3's convolutions of each feature by itself, over the last few rows of a sequence or over the squares
// around the patches of an image: of rows that hold B, C and x side by side they make C * conv(B * x). What they
// convolve is rounded as pages keep it, and summed in float32 or wider. They are ATen's and need no plugin.
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

// The rows of the patches around each one, line by line, by the offset from it.
struct PatchSquares {
  at::Tensor rows, exists; // int64 [offsets, rows]; bool [offsets, rows, 1]
  PatchSquares() = default;
  // `rows`: int64, below 0 where there is no such patch.
  explicit PatchSquares(const at::Tensor& rows);
};
Value gated_convolution(Tape& tape, const Value& gates_and_x, const ConvolutionTaps& taps, const PatchSquares& squares);

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
