// What a forward pass leaves for its backward pass: steps, run once in reverse. The engine's own instead of LibTorch's
// autograd: a step knows which gradients are wanted, writes those of parameters straight into their arena, and frees
// what it saved as it goes; nothing here looks at a tensor's content, so that a whole step can be captured in a graph.
#pragma once
#include "ops/basic_tape.h"
#include "ops/guests.h"
#include "ops/parameter.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

namespace fvlm::ops {

// Where the gradient of one value gathers.
class Gradient {
 public:
  // Takes part in the tensor's memory: whoever gives it does not write to it afterwards.
  void add(at::Tensor gradient);
  // For those who compute one that they will add: memory for it, like this. The first gets what place() named.
  at::Tensor memory(const at::Tensor& like) { return place_ ? std::exchange(place_, {})() : at::empty_like(like); }
  void place(std::function<at::Tensor()> memory) { place_ = std::move(memory); }
  // For those who add to a part only: the whole, in memory of its own. It begins as zeros of this kind.
  at::Tensor& whole(at::IntArrayRef shape, const at::TensorOptions& options);
  // Undefined where nothing has flowed back.
  at::Tensor take() { return std::exchange(sum_, {}); }
  // The same, in memory that nobody else reads.
  at::Tensor take_own();
  bool empty() const { return !sum_.defined(); }

  // A value that has a bias within asks whoever gives its gradient for the sums over rows, which are the bias's: the
  // giver has just written what is to be summed. Given once, by who is the only one to add, or takes what came before
  // him and adds it as well. Who adds to a part may do so behind him, and takes the question back.
  void ask_sums(const Weight& bias) { sums_for_ = std::make_shared<const Weight>(bias); }
  void ask_no_sums() { sums_for_.reset(); }
  // Null: none are wanted, or not of this type.
  const Weight* asks_sums(at::ScalarType type) const {
    const bool wanted = !sum_.defined() && sums_for_ && sums_for_->gradient().scalar_type() == type;
    return wanted ? sums_for_.get() : nullptr;
  }
  void add_with_sums(at::Tensor gradient);
  bool has_sums() const { return has_sums_; }

  // Of keys and values, which an attention further down the tape writes a gradient for: it adds that of one other
  // call's queries, which leave themselves here in place of their share.
  void open_to_guests() { open_ = true; }
  bool is_open() const { return open_; }
  void close() { open_ = false; }
  void leave(Guests guests) { guests_ = std::move(guests); }
  Guests take_guests() { return std::exchange(guests_, {}); }

 private:
  at::Tensor sum_;
  std::shared_ptr<const Weight> sums_for_;
  bool has_sums_ = false, open_ = false;
  Guests guests_;
  std::function<at::Tensor()> place_;
};

using Value = BasicValue<at::Tensor, Gradient>;
using Tape = BasicTape<Value>;

} // namespace fvlm::ops
