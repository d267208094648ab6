// The autograd tape as a template over the value type, so that it compiles without LibTorch. ops/tape.h instantiates it
// with LibTorch tensors.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace fvlm::ops {

// A tensor saved for the backward pass: either its data, or a function that recomputes it.
template <class Tensor>
class SavedTensor {
 public:
  using Make = std::shared_ptr<const std::function<Tensor()>>;
  SavedTensor() = default;
  SavedTensor(Tensor data, Make recompute)
      : data_(recompute ? Tensor() : std::move(data)), recompute_(std::move(recompute)) {}
  Tensor get() const { return recompute_ ? (*recompute_)() : data_; }

 private:
  Tensor data_;
  Make recompute_;
};

// An activation. A backward step that needs only a value's gradient captures `gradient`, so that the data can be freed.
template <class Tensor, class Gradient>
struct BasicValue {
  Tensor data;
  std::shared_ptr<Gradient> gradient;           // null where no gradient is required
  typename SavedTensor<Tensor>::Make recompute; // null where the data itself has to be saved

  BasicValue() = default;
  explicit BasicValue(Tensor tensor, bool requires_grad = false)
      : data(std::move(tensor)), gradient(requires_grad ? std::make_shared<Gradient>() : nullptr) {}

  bool defined() const { return data.defined(); }
  bool requires_grad() const { return gradient != nullptr; }
  SavedTensor<Tensor> saved() const { return {data, recompute}; }
};

struct Parameter;

// Learns during a backward pass which gradients are complete: nothing writes to them any more.
class GradientMarks {
 public:
  GradientMarks() = default;
  virtual ~GradientMarks() = default;
  GradientMarks(const GradientMarks&) = delete;
  GradientMarks& operator=(const GradientMarks&) = delete;

  // An operation of the forward pass reads the parameter. Whether it is the first, and complete() is to be called.
  virtual bool is_first_use(Parameter& parameter) = 0;
  // The gradients of parameters that no operation read are complete.
  virtual void begin_backward() = 0;
  virtual void complete(Parameter& parameter) = 0;
};

// Records one backward step for each operation of a forward pass and runs them once, last first.
template <class Value>
class BasicTape {
 public:
  // record: for training. discard: plugins are asked for the same problems as with `record`, but no step is stored (the
  // first pass of a checkpointed block). forward_only: inference.
  enum class Mode { record, discard, forward_only };
  explicit BasicTape(Mode mode = Mode::record) : mode_(mode) {}

  bool records() const { return mode_ != Mode::forward_only; }
  bool keeps_steps() const { return mode_ == Mode::record; }

  // Tells of complete gradients from here on. The first operation that reads a parameter is the last one to write its
  // gradient. Parameters that operations of another tape read, too, belong to this one if its backward pass is last.
  void set_marks(GradientMarks* marks) {
    marks_ = marks;
    marking_ = this;
  }
  bool has_marks() const { return marks_ != nullptr; }
  // For the first pass of a checkpointed block of that tape.
  void share_marks(const BasicTape& tape) {
    marks_ = tape.marks_;
    marking_ = tape.marking_;
  }

  // "Light" activation checkpointing for a scope: outputs of norms, GELU and SwiGLU, which are cheap to compute, are
  // recomputed in the backward pass in place of being saved.
  class LightCheckpointing {
   public:
    LightCheckpointing(BasicTape& tape, bool lean) : tape_(tape), before_(std::exchange(tape.lean_, lean)) {}
    ~LightCheckpointing() { tape_.lean_ = before_; }
    LightCheckpointing(const LightCheckpointing&) = delete;
    LightCheckpointing& operator=(const LightCheckpointing&) = delete;

   private:
    BasicTape& tape_;
    bool before_;
  };
  bool recomputes_cheap_outputs() const { return lean_ && keeps_steps(); }
  // Gives a value its recompute function, where light checkpointing is on.
  template <class Make>
  void set_recompute(Value& value, Make make) const {
    if (recomputes_cheap_outputs())
      value.recompute = std::make_shared<const std::function<decltype(value.data)()>>(std::move(make));
  }

  // Whether an operation has to record a backward step: on this tape, and if one of its inputs requires a gradient. An
  // operation asks before it pushes the step, with all weights whose gradients that step writes.
  bool records(bool requires_grad) const { return records() && requires_grad; }
  template <class... Inputs>
  requires(sizeof...(Inputs) > 0 && !(std::is_same_v<Inputs, bool> || ...)) bool records(const Inputs&... inputs) {
    const bool answer = records((requires_grad(inputs) || ...));
    if (answer && marks_) (mark(inputs), ...);
    return answer;
  }

  void push(std::function<void()> step) {
    if (keeps_steps()) steps_.push_back(std::move(step));
  }
  // Holds an object until the backward pass has run or the tape is destroyed. Only the first call creates one.
  template <class Make>
  void hold_until_done(const Make& make) {
    if (keeps_steps() && !held_) held_ = make();
  }
  // Runs the recorded steps, last first, and destroys each with what it saved as soon as it has run. The caller adds
  // the gradients of the outputs first.
  void backward() {
    if (marks_ && marking_ == this) marks_->begin_backward();
    while (!steps_.empty()) {
      const auto step = std::move(steps_.back());
      steps_.pop_back();
      step();
    }
    held_.reset();
  }

 private:
  static bool requires_grad(const Value& value) { return value.requires_grad(); }
  template <class Parameters>
  static bool requires_grad(const Parameters& parameters) {
    return parameters.requires_grad();
  }

  template <class Input>
  void mark(const Input& input) {
    if constexpr (requires { input.parts(); })
      for (Parameter* part : input.parts())
        if (marks_->is_first_use(*part)) marking_->push([marks = marks_, part] { marks->complete(*part); });
  }

  Mode mode_;
  bool lean_ = false;
  GradientMarks* marks_ = nullptr;
  BasicTape* marking_ = nullptr; // whose backward pass runs the marks
  std::vector<std::function<void()>> steps_;
  std::shared_ptr<void> held_;
};

template <class Value>
using BasicBlock = std::function<std::vector<Value>(BasicTape<Value>&, const std::vector<Value>&)>;

// Activation checkpointing, as torch.utils.checkpoint: runs `block` without saving anything, and once more in the
// backward pass. `inputs` and the result have to be all values that the block reads and makes, parameters excepted. The
// second run is skipped where the block's outputs require no gradient or received none.
template <class Value>
std::vector<Value> checkpointed(BasicTape<Value>& tape, const std::type_identity_t<std::vector<Value>>& inputs,
                                const std::type_identity_t<BasicBlock<Value>>& block) {
  using Tape = BasicTape<Value>;
  if (!tape.keeps_steps()) return block(tape, inputs);
  Tape first(Tape::Mode::discard);
  first.share_marks(tape);
  std::vector<Value> outputs = block(first, inputs);
  std::vector<decltype(Value::gradient)> gradients;
  for (Value& output : outputs) {
    output = Value(output.data, output.requires_grad());
    gradients.push_back(output.gradient);
  }
  const auto is_required = [](const auto& gradient) { return gradient != nullptr; };
  if (std::ranges::none_of(gradients, is_required)) return outputs;
  tape.push([inputs, gradients, block] {
    const auto was_received = [](const auto& gradient) { return gradient && !gradient->empty(); };
    if (std::ranges::none_of(gradients, was_received)) return;
    std::vector<Value> detached;
    detached.reserve(inputs.size());
    for (const Value& input : inputs) detached.emplace_back(input.data, input.requires_grad());
    Tape inner;
    const std::vector<Value> results = block(inner, detached);
    for (size_t index = 0; index < results.size(); ++index)
      if (was_received(gradients[index])) results[index].gradient->add(gradients[index]->take());
    inner.backward();
    for (size_t index = 0; index < inputs.size(); ++index)
      if (detached[index].requires_grad() && !detached[index].gradient->empty())
        inputs[index].gradient->add(detached[index].gradient->take());
  });
  return outputs;
}

} // namespace fvlm::ops
