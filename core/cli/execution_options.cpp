#include "cli/execution_options.h"

#include "base/text.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"

namespace fvlm::cli {
namespace {

Options& with_options(Options& options, const std::string& of_dtype, const std::string& of_device) {
  return with_plugin_options(options)
      .value("dtype", "fp32|bf16|fp64", of_dtype)
      .value("device", "cpu|cuda", of_device)
      .value("kernels", "NAMES",
             "plugins to use, in order of preference: 'reference', 'cpu,auto'; 'measure' times them; "
             "'linear=reference' is for one operation alone");
}

model::Execution started(const ParsedOptions& parsed, const std::string& device, const std::string& dtype) {
  model::Execution execution;
  execution.device = device;
  execution.dtype = parsed.value_or("dtype", dtype);
  if (const auto names = parsed.value("kernels")) execution.kernels = split(*names, ',');
  initialize_device(execution.device);
  return execution;
}

} // namespace

Options& with_execution_options(Options& options) {
  return with_options(options, "fp32 (default), bf16 or fp64", "default cpu");
}

Options& with_answering_options(Options& options) {
  return with_options(options, "fp32, bf16 or fp64; default: bf16 on a GPU, fp32 on a CPU",
                      "default: cuda where there is one, else cpu");
}

model::Execution execution_of(const ParsedOptions& parsed) {
  const model::Execution usual;
  return started(parsed, parsed.value_or("device", usual.device), usual.dtype);
}

model::Execution answering_execution_of(const ParsedOptions& parsed) {
  const auto named = parsed.value("device");
  const std::string device = named ? *named : default_device();
  return started(parsed, device, device == "cuda" ? "bf16" : "fp32");
}

} // namespace fvlm::cli
