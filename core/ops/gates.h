// Rows that are multiplied by a gate, as in Qwen3.5 and LFM3. They are ATen's and need no plugin.
#pragma once
#include "ops/parameter.h"
#include "ops/tape.h"

namespace fvlm::ops {

// Of rows that begin with a query and a gate of each head by turns: the rows without the gates, and the gates.
struct QueriesAndGates {
  Value rows, gates; // gates: [rows, heads * head_dim]
};
QueriesAndGates split_gates(Tape& tape, const Value& x, int64_t heads, int64_t head_dim);

// x * sigmoid(gates), where each of the gates [rows, n] is of one of n equal parts of x.
Value gated_by_sigmoid(Tape& tape, const Value& x, const Value& gates);

} // namespace fvlm::ops
