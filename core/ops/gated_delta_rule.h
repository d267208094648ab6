// The gated delta rule of Qwen3.5's layers without attention. Each head carries a state S [key_dim, value_dim] from row
// to row of a segment, which begins at zeros. With the row's decay g <= 0 and rate beta between 0 and 1:
//
//   S <- exp(g) S;   S <- S + k (beta (v - S^T k))^T;   y = S^T q
//
// Queries and keys are normalized to length 1, queries divided by the root of key_dim. Computed in float32 or wider, in
// chunks of rows within which all is matrix products. It is ATen's and needs no plugin.
#pragma once
#include "ops/parameter.h"
#include "ops/row_chunks.h"
#include "ops/tape.h"

namespace fvlm::ops {

struct DeltaRule {
  int64_t key_heads, value_heads; // a key's head serves as many of values as there are more of these
  int64_t key_dim, value_dim;
  Weight log_decay, step_bias; // [value_heads]; g = -exp(log_decay) softplus(a + step_bias)
};

// `rows`: q, k and v of each row side by side; `gates`: b and a of each head, where beta = sigmoid(b). Gives [rows,
// value_heads * value_dim].
Value gated_delta_rule(Tape& tape, const Value& rows, const Value& gates, const DeltaRule& rule,
                       const RowChunks& chunks);

// The same for segments that continue others, without a gradient. `states`, [segments, value_heads, key_dim, value_dim]
// in float32 or wider, are those before their first rows, and then those behind their last ones.
at::Tensor continue_delta_rule(const at::Tensor& rows, const at::Tensor& gates, const DeltaRule& rule,
                               const RowChunks& chunks, at::Tensor& states);

} // namespace fvlm::ops
