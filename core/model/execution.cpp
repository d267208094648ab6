#include "model/execution.h"

#include "base/error.h"
#include "plugin/kinds.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::model {
namespace {

at::ScalarType dtype_named(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp64") return at::kDouble;
  throw Error(ErrorKind::usage, "--dtype: expected fp32, bf16 or fp64, got '{}'", name);
}

} // namespace

at::Device device_named(const std::string& name) {
  return name == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

std::string Execution::text() const {
  return fmt::format("in {} on the {}", dtype, device == "cuda" ? "GPU" : "CPU");
}

ops::OperationsOptions Execution::operations() const {
  ops::OperationsOptions options;
  options.device = device_named(device);
  options.dtype = dtype_named(dtype);
  options.gradient_dtype = options.dtype == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<std::string> of_all;
  for (const std::string& word : kernels) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      of_all.push_back(word);
      continue;
    }
    const std::string operation = word.substr(0, equals);
    if (std::ranges::find(kernel_operations(), operation, &TableOperation::name) == kernel_operations().end())
      throw Error(ErrorKind::usage, "--kernels: there is no operation '{}'", operation)
          .advise("expected PLUGIN, or OPERATION=PLUGIN for one operation alone, such as linear=reference");
    options.operations[operation] = BackendPreference::of({word.substr(equals + 1)});
  }
  options.attention = options.loss = options.kernels = options.quantizer = BackendPreference::of(of_all);
  return options;
}

ArenaOptions Execution::arena(bool trains) const {
  const ops::OperationsOptions options = operations();
  return {options.device, options.dtype, options.gradient_dtype, [trains](const ParameterSpec&) { return trains; }};
}

ArenaOptions Execution::answering_arena() const {
  ArenaOptions options = arena(false);
  options.keeps_bfloat16 = options.device.is_cpu() && options.dtype == at::kFloat && kernels.empty();
  return options;
}

} // namespace fvlm::model
