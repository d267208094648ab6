// Operations that only move or scale rows. They need no plugin. Indices are int64 tensors on the device and are never
// read on the host.
#pragma once
#include "ops/parameter.h"
#include "ops/tape.h"

#include <vector>

namespace fvlm::ops {

// x[index], the gather of whole rows. An index may occur several times.
Value gather_rows(Tape& tape, const Value& x, const at::Tensor& index);

// x, and behind it a row for each of `rows`, int64 [means, n]: the sum of those n rows of x, each times its share
// [means, n].
Value append_means(Tape& tape, const Value& x, const at::Tensor& rows, const at::Tensor& shares);
// The same where most rows are taken several times: their gradients are summed in float32, and rounded once.
Value gather_repeated_rows(Tape& tape, const Value& x, const at::Tensor& index);

// The layout of a decoder's input: text tokens, which are embedded, and visual tokens between them.
struct Sequence {
  at::Tensor tokens;      // int64 [rows]; 0 where the row is not text
  at::Tensor is_text;     // float32 [rows, 1]: 1 or 0
  at::Tensor visual_rows; // int64 [visual tokens]: the row of each; `rows` for padding
};
// In `dtype`, which is that of the table where it trains. Embeddings of tokens are multiplied by `token_scale`, rounded
// to that type; visual tokens are not.
Value embed(Tape& tape, const Weight& table, const Value& visual, const Sequence& sequence, at::ScalarType dtype,
            double token_scale = 1);

// The nearest number of this type.
double rounded(double number, at::ScalarType type);

// Each row a mean of rows of the table: those of `index`, int64 [rows, n], times their `shares`, float32 [rows, n]. In
// `dtype`; computed in float32, or in float64 where the table is.
Value mix_rows_of(Tape& tape, const Weight& table, const at::Tensor& index, const at::Tensor& shares,
                  at::ScalarType dtype);

// The same of all rows of the table: shares [rows, rows of the table].
Value mix_rows_of(Tape& tape, const Weight& table, const at::Tensor& shares, at::ScalarType dtype);

// The second and the third quarter of each head in each other's place.
Value swap_inner_quarters(Tape& tape, const Value& x, int64_t head_dim);

// The columns of all values side by side.
Value join_columns(Tape& tape, const std::vector<Value>& values);

// x, to whose row places[i] row i of `added` is added. Places, int64, are different; those past the last row are
// padding.
Value add_to_rows(Tape& tape, const Value& x, const Value& added, const at::Tensor& places);

// The parameter [1, width] broadcast to all rows.
Value broadcast_row(Tape& tape, const Weight& row, int64_t rows);

// x[first::step]: rows first, first + step, ... of x.
Value strided_rows(Tape& tape, const Value& x, int64_t step, int64_t first);

// Of each `count` rows of x, one after the other: their features side by side in one row, and their mean.
Value side_by_side(Tape& tape, const Value& x, int64_t count);
Value mean_of_rows(Tape& tape, const Value& x, int64_t count);

// x * factor
Value scale(Tape& tape, const Value& x, double factor);

} // namespace fvlm::ops
