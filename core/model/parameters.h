// The parameters of a model: a buffer of values, one of gradients, every tensor a view. What one matrix product reads
// together (q, k, v; gate, up) lies together.
#pragma once
#include "model/weights/blocks.h"
#include "ops/parameter.h"

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fvlm::model {

using fvlm::ParameterBlock;
using fvlm::ParameterSpec;

class Parameters;

struct ArenaOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat, gradient_dtype = at::kFloat;
  std::function<bool(const ParameterSpec&)> trains = [](const ParameterSpec&) { return true; };
  const Parameters* values_of = nullptr; // of the same model and options: values are theirs, gradients one's own
};

class Parameters {
 public:
  // Uninitialised values. A block trains as a whole where one of its tensors does.
  Parameters(const std::vector<ParameterBlock>& blocks, const ArenaOptions& options);
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  ops::Parameter& at(const std::string& name);
  ops::Weight weight(const std::string& name) { return ops::Weight(at(name)); }
  ops::Weight together(const std::vector<std::string>& names); // of one block, neighbours in it

  std::deque<ops::Parameter>& all() { return all_; }
  const std::deque<ops::Parameter>& all() const { return all_; }

  // What trains, flat: element i of the one belongs to element i of the other. Between parameters may lie a few
  // elements that are nobody's and stay zero.
  const at::Tensor& trained() const { return trained_; }
  const at::Tensor& gradients() const { return gradients_; }

  // What the next backward pass writes begins anew. No memory is touched.
  void forget_gradients();
  // Zeros where the last backward pass brought nothing.
  void complete_gradients();
  // Which parameters the step's backward passes have brought a gradient so far, in the order of all().
  std::vector<bool> with_gradient() const;
  void set_with_gradient(const std::vector<bool>& which);
  // Adds those of another's last backward pass.
  void add_gradients(Parameters& other);

 private:
  at::Tensor trained_, fixed_, gradients_;
  std::deque<ops::Parameter> all_;
  std::map<std::string, ops::Parameter*> by_name_;
};

} // namespace fvlm::model
