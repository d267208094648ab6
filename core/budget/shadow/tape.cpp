#include "budget/shadow/tape.h"

#include <algorithm>

namespace fvlm::budget::shadow {
namespace {

bool is_sole_owner(const Tensor& tensor) {
  return tensor.block.use_count() == 1;
}

} // namespace

Tensor make(Ledger& ledger, int64_t rows, int64_t columns, int64_t element) {
  const int64_t bytes = rows * columns * element;
  return {ledger.hold(bytes), rows, columns, bytes, &ledger};
}

Tensor another(const Tensor& like) {
  return {like.ledger->hold(like.bytes), like.rows, like.columns, like.bytes, like.ledger};
}

void Gradient::add(Tensor gradient) {
  if (sum_.defined() && is_sole_owner(sum_)) return; // in place
  sum_ = !sum_.defined() || is_sole_owner(gradient) ? std::move(gradient) : another(sum_);
}

const Tensor& Gradient::whole(const Tensor& like) {
  if (!sum_.defined() || !is_sole_owner(sum_)) sum_ = another(like);
  return sum_;
}

Tensor Gradient::take_own() {
  if (sum_.defined() && !is_sole_owner(sum_)) sum_ = another(sum_);
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

} // namespace fvlm::budget::shadow
