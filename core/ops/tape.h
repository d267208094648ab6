// The tape of a training step: the engine's own in place of LibTorch's autograd. A backward step knows which gradients
// are required, writes those of parameters straight into their gradient arena, and frees its saved tensors as it goes.
// Nothing reads a tensor's content on the host, so that a whole step can be captured as a CUDA graph.
#pragma once
#include "ops/basic_tape.h"
#include "ops/deferred_queries.h"
#include "ops/parameter.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

namespace fvlm::ops {

// Accumulates the gradient of one value.
class Gradient {
 public:
  // May keep a reference to the tensor's memory: the caller must not write to it afterwards.
  void add(at::Tensor gradient);
  // Memory for a gradient of this value that the caller computes and then passes to add(). The first call returns the
  // destination set below, if there is one.
  at::Tensor allocate_like(const at::Tensor& like) {
    return destination_ ? std::exchange(destination_, {})() : at::empty_like(like);
  }
  // The same for an operation that may overwrite the value's own data, where nothing else refers to that.
  at::Tensor allocate_over(const at::Tensor& data);
  // new_memory: memory() allocates, so that nothing else refers to what it returns.
  void set_destination(std::function<at::Tensor()> memory, bool new_memory = false) {
    destination_ = std::move(memory);
    destination_is_new_ = new_memory;
  }
  // Of a value that an operation changed in place: its gradient becomes this one's in place, too.
  void set_destination_of(Gradient& before) {
    if (before.destination_is_new_) set_destination(std::exchange(before.destination_, {}), true);
  }
  // The accumulated gradient for in-place addition to a part of it; zeros of this shape where nothing was added yet.
  at::Tensor& accumulator(at::IntArrayRef shape, const at::TensorOptions& options);
  // Moves the accumulated gradient out. Undefined where nothing was added.
  at::Tensor take() {
    zero_unwritten();
    return std::exchange(sum_, {});
  }
  // As take(), but in memory that nothing else refers to, so that the caller may overwrite it.
  at::Tensor take_exclusive();
  bool empty() const { return !sum_.defined(); }
  const at::Tensor& sum() const { return sum_; } // its columns that were announced may be without content

  // Gradients of operations that read some columns of the value. An operation announces in the forward pass that its
  // backward will be the first to write these columns, so that others need not zero them; announcements of columns that
  // overlap with earlier ones have no effect.
  struct Columns {
    int64_t first, count;
    bool overlaps(const Columns& other) const {
      return first < other.first + other.count && other.first < first + count;
    }
    bool operator==(const Columns&) const = default;
  };
  void announce(const Columns& columns);
  // These columns of the accumulated gradient of this shape, to be written by the caller: overwritten where the second
  // value is true, otherwise added to.
  std::pair<at::Tensor, bool> destination(const Columns& columns, at::IntArrayRef shape,
                                          const at::TensorOptions& options);

  // Fused bias gradient. The gradient of a linear's bias is the column sum of its output's gradient, and whichever
  // kernel writes that gradient can sum it on the way. So the linear requests it here, and a later operation that can
  // do it (requested_bias() is not null) sums into the bias and calls add_with_bias_gradient(). After that nothing may
  // be added to this value. An operation that adds to a part of the value only withdraws the request.
  void request_bias_gradient(const Weight& bias) { requested_bias_ = std::make_shared<const Weight>(bias); }
  void withdraw_bias_gradient() { requested_bias_.reset(); }
  // Null where nothing was requested, something was added already, or the bias has gradients of another type.
  const Weight* requested_bias(at::ScalarType type) const {
    const bool is_possible = !sum_.defined() && requested_bias_ && requested_bias_->gradient().scalar_type() == type;
    return is_possible ? requested_bias_.get() : nullptr;
  }
  void add_with_bias_gradient(at::Tensor gradient);
  bool has_bias_gradient() const { return has_bias_gradient_; }

  // Deferred queries, for the gradients of keys and values that two attentions read: the attention whose backward runs
  // later offers to add the other one's share of d_k and d_v, and the other one leaves its queries here.
  void accept_deferred_queries() { accepts_deferred_queries_ = true; }
  bool accepts_deferred_queries() const { return accepts_deferred_queries_; }
  void close_to_deferred_queries() { accepts_deferred_queries_ = false; }
  void defer_queries(DeferredQueries queries) { deferred_queries_ = std::move(queries); }
  DeferredQueries take_deferred_queries() { return std::exchange(deferred_queries_, {}); }

  // Work that reads the value's data, for data that was not kept: the step behind this gradient may compute it again
  // with the gradient, and offers in the forward pass to do the work then.
  using DataWork = std::function<void(const at::Tensor& data)>;
  void offer_data() { offers_data_ = true; }
  bool offers_data() const { return offers_data_; }
  void when_computed_again(DataWork work) { data_work_.push_back(std::move(work)); }
  std::vector<DataWork> take_data_work() { return std::exchange(data_work_, {}); }

 private:
  void zero_unwritten() {
    if (!unwritten_.empty()) zero(std::exchange(unwritten_, {}));
  }
  void zero(const std::vector<Columns>& columns);

  at::Tensor sum_;
  std::vector<Columns> announced_, unwritten_; // unwritten_: columns of sum_ without content
  std::shared_ptr<const Weight> requested_bias_;
  bool has_bias_gradient_ = false, accepts_deferred_queries_ = false, offers_data_ = false, destination_is_new_ = false;
  DeferredQueries deferred_queries_;
  std::function<at::Tensor()> destination_;
  std::vector<DataWork> data_work_;
};

using Value = BasicValue<at::Tensor, Gradient>;
using Tape = BasicTape<Value>;

} // namespace fvlm::ops
