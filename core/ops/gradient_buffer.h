// Memory for gradients that is there only from their first write in a backward pass until they have been reduced. What
// is a view of it stays one.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fvlm::ops {

class GradientBuffer {
 public:
  // Without memory.
  GradientBuffer(int64_t elements, const at::TensorOptions& options);

  const at::Tensor& values() const { return values_; } // flat
  // Zeros, where it has no memory yet.
  void allocate();
  void release();

 private:
  at::Tensor values_;
  bool has_memory_ = true;
};

} // namespace fvlm::ops
