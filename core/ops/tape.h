// What a forward pass leaves for its backward pass: steps, run once in reverse. The engine's own instead of LibTorch's
// autograd: a step knows which gradients are wanted, writes those of parameters straight into their arena, and frees
// what it saved as it goes; nothing here looks at a tensor's content, so that a whole step can be captured in a graph.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

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

// An activation. Steps that need a value's gradient alone keep `gradient` and let the data go.
struct Value {
  at::Tensor data;
  std::shared_ptr<Gradient> gradient; // null: nobody wants it

  Value() = default;
  explicit Value(at::Tensor tensor, bool wants_gradient = false)
      : data(std::move(tensor)), gradient(wants_gradient ? std::make_shared<Gradient>() : nullptr) {}

  bool defined() const { return data.defined(); }
  bool wants_gradient() const { return gradient != nullptr; }
};

class Tape {
 public:
  // discard: everything runs as if it were recorded, in the same shape classes, but no step is kept.
  enum class Mode { record, discard, forward_only };
  explicit Tape(Mode mode = Mode::record) : mode_(mode) {}

  bool records() const { return mode_ != Mode::forward_only; }
  bool keeps_steps() const { return mode_ == Mode::record; }
  // Whether an operation that reads these is to leave a step.
  template <class... Inputs>
  bool records(const Inputs&... inputs) const {
    return records() && (wants(inputs) || ...);
  }

  void push(std::function<void()> step) {
    if (keeps_steps()) steps_.push_back(std::move(step));
  }
  // Runs the steps, last first, and forgets each as it is done. Gradients of the results were added before.
  void backward();

 private:
  static bool wants(const Value& value) { return value.wants_gradient(); }
  template <class Parameters>
  static bool wants(const Parameters& parameters) {
    return parameters.trains();
  }

  Mode mode_;
  std::vector<std::function<void()>> steps_;
};

// Runs `block` without keeping what it saves, and again when its gradients are due. What goes in and comes out are all
// values it reads and makes, but for parameters. Where the block makes nothing that wants a gradient, or no gradient
// came back to it, it does not run again.
using Block = std::function<std::vector<Value>(Tape&, const std::vector<Value>&)>;
std::vector<Value> recomputed(Tape& tape, const std::vector<Value>& inputs, const Block& block);

} // namespace fvlm::ops
