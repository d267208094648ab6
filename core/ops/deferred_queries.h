// Queries of one attention whose contribution to d_k and d_v another attention's backward computes: the `guest_`
// arguments of fvlm/attention.h.
#pragma once
#include <ATen/core/Tensor.h>

namespace fvlm::ops {

struct DeferredQueries {
  at::Tensor q, d_out;
  at::Tensor cu_seqlens; // int32 [segments + 1]

  bool defined() const { return q.defined(); }
};

} // namespace fvlm::ops
