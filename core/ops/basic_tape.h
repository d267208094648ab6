// A tape over any kind of tensor: ops/tape.h has LibTorch's, budget/shadow/tape.h such that have sizes alone.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace fvlm::ops {

// What a step keeps of a value that it reads again: the data, or how to make them anew.
template <class Tensor>
class Kept {
 public:
  using Make = std::shared_ptr<const std::function<Tensor()>>;
  Kept() = default;
  Kept(Tensor data, Make again) : data_(again ? Tensor() : std::move(data)), again_(std::move(again)) {}
  Tensor get() const { return again_ ? (*again_)() : data_; }

 private:
  Tensor data_;
  Make again_;
};

// An activation. Steps that need a value's gradient alone keep `gradient` and let the data go.
template <class Tensor, class Gradient>
struct BasicValue {
  Tensor data;
  std::shared_ptr<Gradient> gradient; // null: nobody wants it
  typename Kept<Tensor>::Make again;  // makes the data anew of what is kept anyway; null: they are to be kept

  BasicValue() = default;
  explicit BasicValue(Tensor tensor, bool wants_gradient = false)
      : data(std::move(tensor)), gradient(wants_gradient ? std::make_shared<Gradient>() : nullptr) {}

  bool defined() const { return data.defined(); }
  bool wants_gradient() const { return gradient != nullptr; }
  Kept<Tensor> kept() const { return {data, again}; }
};

template <class Value>
class BasicTape {
 public:
  // discard: everything runs as if it were recorded, in the same shape classes, but no step is kept.
  enum class Mode { record, discard, forward_only };
  explicit BasicTape(Mode mode = Mode::record) : mode_(mode) {}

  bool records() const { return mode_ != Mode::forward_only; }
  bool keeps_steps() const { return mode_ == Mode::record; }

  // While it lives, steps do not keep what is cheap to make again: what came out of norms, GELU and SwiGLU.
  class Lean {
   public:
    Lean(BasicTape& tape, bool lean) : tape_(tape), before_(std::exchange(tape.lean_, lean)) {}
    ~Lean() { tape_.lean_ = before_; }
    Lean(const Lean&) = delete;
    Lean& operator=(const Lean&) = delete;

   private:
    BasicTape& tape_;
    bool before_;
  };
  bool is_lean() const { return lean_ && keeps_steps(); }
  // Tells a value how it is made again.
  template <class Make>
  void make_again(Value& value, Make make) const {
    if (is_lean()) value.again = std::make_shared<const std::function<decltype(value.data)()>>(std::move(make));
  }

  // Whether an operation is to leave a step, where somebody wants a gradient of what it reads; or that reads these.
  bool records(bool wanted) const { return records() && wanted; }
  template <class... Inputs>
  bool records(const Inputs&... inputs) const {
    return records((wants(inputs) || ...));
  }

  void push(std::function<void()> step) {
    if (keeps_steps()) steps_.push_back(std::move(step));
  }
  // Makes something that is let go when the steps are done, or with the tape: the first who asks.
  template <class Make>
  void keep(const Make& until_the_end) {
    if (keeps_steps() && !kept_) kept_ = until_the_end();
  }
  // Runs the steps, last first, and forgets each as it is done. Gradients of the results were added before.
  void backward() {
    while (!steps_.empty()) {
      const auto step = std::move(steps_.back());
      steps_.pop_back();
      step();
    }
    kept_.reset();
  }

 private:
  static bool wants(const Value& value) { return value.wants_gradient(); }
  template <class Parameters>
  static bool wants(const Parameters& parameters) {
    return parameters.trains();
  }

  Mode mode_;
  bool lean_ = false;
  std::vector<std::function<void()>> steps_;
  std::shared_ptr<void> kept_;
};

template <class Value>
using BasicBlock = std::function<std::vector<Value>(BasicTape<Value>&, const std::vector<Value>&)>;

// Runs `block` without keeping what it saves, and again when its gradients are due. What goes in and comes out are all
// values it reads and makes, but for parameters. Where the block makes nothing that wants a gradient, or no gradient
// came back to it, it does not run again.
template <class Value>
std::vector<Value> recomputed(BasicTape<Value>& tape, const std::type_identity_t<std::vector<Value>>& inputs,
                              const std::type_identity_t<BasicBlock<Value>>& block) {
  using Tape = BasicTape<Value>;
  if (!tape.keeps_steps()) return block(tape, inputs);
  Tape first(Tape::Mode::discard);
  std::vector<Value> outputs = block(first, inputs);
  std::vector<decltype(Value::gradient)> gradients;
  for (Value& output : outputs) {
    output = Value(output.data, output.wants_gradient());
    gradients.push_back(output.gradient);
  }
  const auto is_wanted = [](const auto& gradient) { return gradient != nullptr; };
  if (std::none_of(gradients.begin(), gradients.end(), is_wanted)) return outputs;
  tape.push([inputs, gradients, block] {
    const auto came_back = [](const auto& gradient) { return gradient && !gradient->empty(); };
    if (std::none_of(gradients.begin(), gradients.end(), came_back)) return;
    std::vector<Value> again;
    again.reserve(inputs.size());
    for (const Value& input : inputs) again.emplace_back(input.data, input.wants_gradient());
    Tape inner;
    const std::vector<Value> results = block(inner, again);
    for (size_t index = 0; index < results.size(); ++index)
      if (came_back(gradients[index])) results[index].gradient->add(gradients[index]->take());
    inner.backward();
    for (size_t index = 0; index < inputs.size(); ++index)
      if (again[index].wants_gradient() && !again[index].gradient->empty())
        inputs[index].gradient->add(again[index].gradient->take());
  });
  return outputs;
}

} // namespace fvlm::ops
