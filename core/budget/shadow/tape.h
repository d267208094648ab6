// ops/tape.h without numbers: tensors that have a size and hold memory of a Ledger, and the tape over them. Who keeps
// what, and for how long, is the same.
#pragma once
#include "budget/ledger.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fvlm::budget::shadow {

struct Tensor {
  Ledger::Block block;
  int64_t rows = 0, columns = 0, bytes = 0;
  Ledger* ledger = nullptr;

  bool defined() const { return ledger != nullptr; }
};

// In memory of its own.
Tensor make(Ledger& ledger, int64_t rows, int64_t columns, int64_t element);
Tensor another(const Tensor& like);

class Gradient {
 public:
  void add(Tensor gradient);
  // Memory of its own of this size, as zeros where nothing lies there yet.
  const Tensor& whole(const Tensor& like);
  Tensor take() { return std::exchange(sum_, {}); }
  Tensor take_own();
  bool empty() const { return !sum_.defined(); }

 private:
  Tensor sum_;
};

struct Value {
  Tensor data;
  std::shared_ptr<Gradient> gradient;

  Value() = default;
  explicit Value(Tensor tensor, bool wants_gradient = false)
      : data(std::move(tensor)), gradient(wants_gradient ? std::make_shared<Gradient>() : nullptr) {}
  bool defined() const { return data.defined(); }
  bool wants_gradient() const { return gradient != nullptr; }
};

class Tape {
 public:
  enum class Mode { record, discard, forward_only };
  explicit Tape(Mode mode = Mode::record) : mode_(mode) {}

  bool records(bool wanted) const { return mode_ != Mode::forward_only && wanted; }
  bool keeps_steps() const { return mode_ == Mode::record; }
  void push(std::function<void()> step) {
    if (keeps_steps()) steps_.push_back(std::move(step));
  }
  void backward();

 private:
  Mode mode_;
  std::vector<std::function<void()>> steps_;
};

using Block = std::function<std::vector<Value>(Tape&, const std::vector<Value>&)>;
std::vector<Value> recomputed(Tape& tape, const std::vector<Value>& inputs, const Block& block);

} // namespace fvlm::budget::shadow
