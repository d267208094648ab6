// Packed attention in plain ATen, by two methods with the same results: segment by segment where the segments' bounds
// can be read (CPU), and one masked softmax over all tokens where reading them would synchronize with the device
// (CUDA). Tensors are [tokens, heads, head_dim] in an accumulation type; padding rows of results are 0.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>

namespace fvlm::ops::reference {

struct AttentionShape {
  at::Tensor cu_q, cu_kv; // int32 [segments + 1]
  double scale;
  bool causal;
};

at::Tensor attention_by_segment(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v);
at::Tensor attention_by_mask(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v);

// d_q, d_k, d_v
using AttentionGradients = std::array<at::Tensor, 3>;
AttentionGradients attention_gradients_by_segment(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v, const at::Tensor& d_out);
AttentionGradients attention_gradients_by_mask(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k,
                                               const at::Tensor& v, const at::Tensor& d_out);

} // namespace fvlm::ops::reference
