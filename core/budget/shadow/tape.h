// ops/tape.h without numbers: tensors that have a size and hold memory of a Ledger, and the tape over them. Who keeps
// what, and for how long, is the same.
#pragma once
#include "budget/ledger.h"
#include "ops/basic_tape.h"

#include <utility>

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
  const Tensor& accumulator(const Tensor& like);
  Tensor take() { return std::exchange(sum_, {}); }
  Tensor take_exclusive();
  bool empty() const { return !sum_.defined(); }

  void accept_deferred_queries() { open_ = true; }
  bool take_in() { return std::exchange(open_, false); }

 private:
  Tensor sum_;
  bool open_ = false;
};

using Value = ops::BasicValue<Tensor, Gradient>;
using Tape = ops::BasicTape<Value>;
using ops::checkpointed;

} // namespace fvlm::budget::shadow
