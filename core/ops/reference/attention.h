// Packed attention in plain ATen, by two methods with the same results: segment by segment where the segments' bounds
// can be read (CPU), and one masked softmax over all tokens where reading them would synchronize with the device
// (CUDA). Tensors are [tokens, heads, head_dim] in an accumulation type, or on CUDA in one of 16 bits, of which
// products are summed in float32; padding rows of results are 0.
#pragma once
#include "ops/attention.h"

#include <ATen/core/Tensor.h>

#include <array>

namespace fvlm::ops::reference {

struct AttentionShape {
  at::Tensor cu_q, cu_kv; // int32 [segments + 1]
  double scale;
  bool causal;
  // Under a causal mask, of rows that attend to rows of the same buffer. A row attends to the last `window` ones alone,
  // its own among them; 0: to all before it.
  int64_t window = 0;
  // int32 [tokens]: the last row that each attends to, its own or one behind it; undefined: its own.
  at::Tensor last = {};
  // int32 [tokens]: the first row that each attends to although it is outside of the window; undefined: its own.
  at::Tensor first = {};
  double softcap = 0; // scores s become softcap * tanh(s / softcap); 0: they stay as they are
  // Under a causal mask, of rows that attend to rows of the same buffer: no segment has more of them. 0: unknown.
  int64_t longest = 0;
  // Whether queries and keys are the same rows, each of which attends to a range of them.
  bool has_ranges() const { return window > 0 || last.defined() || longest > 0; }
};

// log_sum_exp, where it is defined: of a partial call, [tokens, heads], written for rows with a visible key.
at::Tensor attention_by_segment(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v, const at::Tensor& log_sum_exp = {});
at::Tensor attention_by_mask(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& log_sum_exp = {});

// Of a partial call, what the forward passes over all keys came to together.
struct MergedAttention {
  at::Tensor out, log_sum_exp; // undefined: the call has all keys
};
// d_q, d_k, d_v
using AttentionGradients = std::array<at::Tensor, 3>;
AttentionGradients attention_gradients_by_segment(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v, const at::Tensor& d_out,
                                                  const MergedAttention& merged = {});
AttentionGradients attention_gradients_by_mask(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k,
                                               const at::Tensor& v, const at::Tensor& d_out,
                                               const MergedAttention& merged = {});

// Attention over pages (fvlm/attention.h) of rows that attend to the last `window` keys up to their own, which is
// number positions[row] of their sequence, and to those behind it that lengths[row] says; rows of length 0 are padding.
// q: [rows, heads, head_dim].
at::Tensor paged_attention_in_window(const at::Tensor& q, const PagedKeys& keys, const at::Tensor& positions,
                                     int64_t window, double scale, double softcap = 0);

} // namespace fvlm::ops::reference
