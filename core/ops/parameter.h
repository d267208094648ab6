// Parameters as operations see them: a value, and where its gradient goes.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fvlm::ops {

// One tensor of a model directory. `value` and `gradient` are views of arenas.
struct Parameter {
  std::string name;           // "decoder.model.layers.0.self_attn.q_proj.weight"
  at::Tensor value, gradient; // gradient: undefined where the parameter does not train
  bool has_gradient = false;  // of the current step: what is written next adds to it
  bool is_aside = false;      // of the current step: it has been written beside other work
};

// Tensors of one shape that lie as far from each other, the first to the second as the second to the third, as one with
// a dimension more. Undefined: they do not.
at::Tensor stacked(std::span<const at::Tensor> tensors);

// What an operation reads at once: a parameter, or several that lie side by side (q, k, v; gate, up) as one.
class Weight {
 public:
  Weight() = default;
  explicit Weight(Parameter& parameter) : Weight(std::vector<Parameter*>{&parameter}) {}
  // One that a step makes.
  explicit Weight(std::shared_ptr<Parameter> made) : Weight(*made) { made_ = std::move(made); }
  // Adjacent in their arenas, in this order; all but the first dimension equal.
  explicit Weight(std::vector<Parameter*> parts);

  // The same memory as [first dimension, all others]: a convolution's weight for a linear.
  Weight as_matrix() const;

  bool defined() const { return value_.defined(); }
  bool trains() const { return gradient_.defined(); }
  const at::Tensor& value() const { return value_; }
  const at::Tensor& gradient() const { return gradient_; }
  bool has_gradient() const; // any part of it
  // To be asked once before each write of gradients: whether it is to add to what is there, the same for all. What is
  // written is enqueued next, in order with all the rest; it waits for what has been written aside.
  static bool claim(std::span<const Weight> weights);
  static bool claim(const Weight& weight, const Weight& other = {}) { return claim(std::array{weight, other}); }
  // The same for what Runtime::beside() is to enqueue.
  static bool claim_aside(std::span<const Weight> weights);
  // For gradients that no plugin writes.
  void add_gradient(const at::Tensor& gradient) const;

 private:
  static bool begin_gradients(std::span<const Weight> weights);
  void begin_gradient(bool others_add) const;
  bool is_aside() const;
  void set_aside(bool is_aside) const;

  std::vector<Parameter*> parts_;
  std::shared_ptr<Parameter> made_;
  at::Tensor value_, gradient_;
};

} // namespace fvlm::ops
