// What a forward pass leaves for its backward pass: steps, run once in reverse. The engine's own instead of LibTorch's
// autograd: a step knows which gradients are wanted, writes those of parameters straight into their arena, and frees
// what it saved as it goes; nothing here looks at a tensor's content, so that a whole step can be captured in a graph.
#pragma once
#include "ops/basic_tape.h"

#include <ATen/core/Tensor.h>

namespace fvlm::ops {

// Where the gradient of one value gathers.
class Gradient {
 public:
  // Takes part in the tensor's memory: whoever gives it does not write to it afterwards.
  void add(at::Tensor gradient);
  // For those who add to a part only: the whole, in memory of its own. It begins as zeros of this kind.
  at::Tensor& whole(at::IntArrayRef shape, const at::TensorOptions& options);
  // Undefined where nothing has flowed back.
  at::Tensor take() { return std::exchange(sum_, {}); }
  // The same, in memory that nobody else reads.
  at::Tensor take_own();
  bool empty() const { return !sum_.defined(); }

 private:
  at::Tensor sum_;
};

using Value = BasicValue<at::Tensor, Gradient>;
using Tape = BasicTape<Value>;

} // namespace fvlm::ops
