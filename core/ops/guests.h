// Queries of one attention whose share of the keys' and values' gradients another one's backward adds: see
// fvlm/attention.h.
#pragma once
#include <ATen/core/Tensor.h>

namespace fvlm::ops {

struct Guests {
  at::Tensor q, d_out, starts; // starts: int32 [segments + 1]

  bool defined() const { return q.defined(); }
};

} // namespace fvlm::ops
