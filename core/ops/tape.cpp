#include "ops/tape.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace fvlm::ops {
namespace {

// Whether no one else sees this tensor's memory.
bool is_sole_owner(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

} // namespace

void Gradient::add(at::Tensor gradient) {
  if (!sum_.defined()) {
    sum_ = std::move(gradient);
  } else if (is_sole_owner(sum_)) {
    sum_.add_(gradient);
  } else if (is_sole_owner(gradient)) {
    sum_ = std::move(gradient.add_(sum_));
  } else {
    sum_ = sum_ + gradient;
  }
}

at::Tensor& Gradient::whole(at::IntArrayRef shape, const at::TensorOptions& options) {
  if (!sum_.defined())
    sum_ = at::zeros(shape, options);
  else if (!is_sole_owner(sum_))
    sum_ = sum_.clone();
  return sum_;
}

at::Tensor Gradient::take_own() {
  if (sum_.defined() && !is_sole_owner(sum_)) sum_ = sum_.clone();
  return take();
}

void Tape::backward() {
  while (!steps_.empty()) {
    const auto step = std::move(steps_.back());
    steps_.pop_back();
    step();
  }
}

std::vector<Value> recomputed(Tape& tape, const std::vector<Value>& inputs, const Block& block) {
  if (!tape.keeps_steps()) return block(tape, inputs);
  Tape first(Tape::Mode::discard);
  std::vector<Value> outputs = block(first, inputs);
  std::vector<std::shared_ptr<Gradient>> gradients;
  for (Value& output : outputs) {
    output = Value(output.data, output.wants_gradient());
    gradients.push_back(output.gradient);
  }
  const auto is_wanted = [](const std::shared_ptr<Gradient>& gradient) { return gradient != nullptr; };
  if (std::none_of(gradients.begin(), gradients.end(), is_wanted)) return outputs;
  tape.push([inputs, gradients, block] {
    const auto came_back = [](const std::shared_ptr<Gradient>& gradient) { return gradient && !gradient->empty(); };
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
