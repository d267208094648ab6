// Moving rows about: the operations of a model that compute nothing. Indices are int64 tensors on the device; none is
// read on the host.
#pragma once
#include "ops/parameter.h"
#include "ops/tape.h"

namespace fvlm::ops {

// x[index], a row each. A row may be taken several times.
Value take_rows(Tape& tape, const Value& x, const at::Tensor& index);

// A decoder's input: rows of a table by token, and visual tokens in between.
struct Sequence {
  at::Tensor tokens;      // int64 [rows]; any valid token where there is no text
  at::Tensor is_text;     // float32 [rows, 1]: 1 or 0
  at::Tensor visual_rows; // int64 [visual tokens]: where each lies; `rows` for one that is padding
};
Value embed(Tape& tape, const Weight& table, const Value& visual, const Sequence& sequence);

// A parameter [1, width] as every row.
Value repeat_row(Tape& tape, const Weight& row, int64_t rows);

// Rows first, first + step, ... of x.
Value every(Tape& tape, const Value& x, int64_t step, int64_t first);

// x * factor
Value scaled(Tape& tape, const Value& x, double factor);

} // namespace fvlm::ops
