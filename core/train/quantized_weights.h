// A stage that trains through its recipe's quantization: passes compute with what the linear weights come to in few
// bits, and gradients go straight through to what they are.
#pragma once
#include "model/parameters.h"
#include "ops/quantizer.h"
#include "plugin/registry.h"
#include "recipe/plan.h"

#include <memory>
#include <string>
#include <vector>

namespace fvlm::train {

class QuantizedWeights {
 public:
  // Every linear weight that `skip` does not name, trained or frozen. Throws Error(plugin) where nobody has the scheme,
  // Error(recipe) where no weight is left, and as budget::require_matches().
  QuantizedWeights(const plan::Plan& plan, Registry& registry, model::Parameters& parameters, at::Device device);

  // The model's values become the quantised ones, until restore() brings back what they really are: all of them, or
  // those that the optimizer is to change.
  enum class Which { all, trained };
  void quantize();
  void restore(Which which);
  // From the gradients by the quantised values to those by the original ones.
  void pass_gradients();

  std::vector<std::string> names() const; // in the model directory
  int64_t original_bytes() const;         // that the original weights take beside the quantized ones
  const std::string& choice() const { return choice_; }

 private:
  struct Matrix {
    ops::Parameter* parameter;
    std::shared_ptr<const ops::Quantizer> quantizer;
    at::Tensor original; // while the value is quantised
    bool quantized = false;
    bool trains() const { return parameter->gradient.defined(); }
  };
  std::vector<Matrix> matrices_;
  std::string choice_;
};

} // namespace fvlm::train
