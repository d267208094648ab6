// Operations in float64 on the references, and their gradients compared with central differences.
#pragma once
#include "ops/operations.h"
#include "tools.h"

#include <ATen/ops/full.h>

namespace fvlm::ops {

constexpr double gradient_tolerance = 1e-7;

struct Bench {
  Bench() {
    registry.add_static(reference_manifest(), [] { return &reference_entry; });
    OperationsOptions options;
    options.dtype = options.gradient_dtype = at::kDouble;
    ops.emplace(registry, options);
  }
  Parameter& parameter(const std::string& name, at::IntArrayRef shape) {
    Parameter& made = *parameters.emplace_back(std::make_unique<Parameter>());
    made.name = name;
    made.value = random(shape, 100 + parameters.size());
    made.gradient = at::full(shape, std::nan(""), at::kDouble); // so that unwritten elements are noticed
    return made;
  }
  Value input(at::IntArrayRef shape) { return inputs.emplace_back(random(shape, 200 + inputs.size()), true); }

  // A weighted sum of all outputs, with a different weight for each.
  using Run = std::function<std::vector<Value>(Tape&)>;
  void expect_true_gradients(const Run& run) {
    for (const auto& each : parameters) each->has_gradient = false;
    std::vector<at::Tensor> weights;
    Tape tape;
    const auto outputs = run(tape);
    for (const Value& output : outputs) {
      weights.push_back(random(output.data.sizes(), 300 + weights.size()));
      output.gradient->add(weights.back());
    }
    tape.backward();
    const auto loss = [&] {
      Tape none(Tape::Mode::forward_only);
      double sum = 0;
      const auto again = run(none);
      for (size_t i = 0; i < again.size(); ++i) sum += again[i].data.mul(weights[i]).sum().item<double>();
      return sum;
    };
    const auto compare = [&](const at::Tensor& value, const at::Tensor& gradient, const std::string& what) {
      ASSERT_TRUE(gradient.defined()) << what;
      for (int64_t element = 0; element < value.numel(); element += std::max<int64_t>(1, value.numel() / 7)) {
        const double expected = difference(value, element, loss),
                     actual = gradient.reshape({-1})[element].item<double>();
        EXPECT_NEAR(actual, expected, gradient_tolerance * std::max(1.0, std::abs(expected)))
            << what << " element " << element;
      }
    };
    for (size_t i = 0; i < inputs.size(); ++i)
      compare(inputs[i].data, inputs[i].gradient->take(), "input " + std::to_string(i));
    for (const auto& each : parameters)
      if (each->gradient.defined()) compare(each->value, each->gradient, each->name);
  }

  Registry registry{RegistryOptions{}};
  std::optional<Operations> ops;
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<Value> inputs;
};

} // namespace fvlm::ops
