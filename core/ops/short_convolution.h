// Convolutions of each feature by itself that reach back over the last few rows of a sequence: LFM2's gated one, which
// of rows that hold B, C and x side by side makes C * conv(B * x), and Qwen3.5's, silu(conv(x)). What they convolve is
// rounded as pages and states keep it, and summed in float32 or wider. They are ATen's and need no plugin.
#pragma once
#include "ops/parameter.h"
#include "ops/tape.h"

namespace fvlm::ops {

struct ConvolutionTaps {
  Weight weight; // [width, 1, taps], that of a row itself last
  Weight bias;   // [width]; undefined: none
  int64_t count() const { return weight.value().size(2); }
};

// [reach, rows, 1] in the type of `options`: for 1 to `reach` rows before, 1 where that row is of the same segment,
// else 0. Segments lie one behind the other from the first row on.
at::Tensor rows_within_segments(const at::Tensor& cu_seqlens, int64_t rows, int64_t reach,
                                const at::TensorOptions& options);

// `within`: rows_within_segments() with a reach of one less than the taps.
Value gated_convolution(Tape& tape, const Value& gates_and_x, const ConvolutionTaps& taps, const at::Tensor& within);

// Of the leading `width` columns of x.
Value silu_convolution(Tape& tape, const Value& x, int64_t width, const ConvolutionTaps& taps,
                       const at::Tensor& within);

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

// Where the rows before those of a pass are, for sequences whose last `reach` rows are carried from pass to pass:
// numbers of rows of the pass and, behind them, of those carried, [sequences, reach, width].
struct CarriedRows {
  std::vector<at::Tensor> before; // int64 [rows], by the distance less one
  at::Tensor behind;              // int64 [sequences * reach]: the last ones of each sequence after the pass
  // `row_bounds`: int32 [sequences + 1], the rows of each sequence in the pass; `sequences`: int32 [rows].
  CarriedRows(const at::Tensor& row_bounds, const at::Tensor& sequences, int64_t reach);
};

// silu(conv(rows)) for rows that continue sequences, without a gradient. `carried` becomes what the next pass reads.
at::Tensor continue_silu_convolution(const at::Tensor& rows, const ConvolutionTaps& taps, const CarriedRows& places,
                                     at::Tensor& carried);

} // namespace fvlm::ops
