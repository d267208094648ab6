#include "cli/execution_options.h"

#include "base/text.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"

namespace fvlm::cli {

Options& with_execution_options(Options& options) {
  return with_plugin_options(options)
      .value("dtype", "fp32|bf16|fp64", "fp32 (default), bf16 or fp64")
      .value("device", "cpu|cuda", "default cpu")
      .value("kernels", "NAMES",
             "plugins to use, in order of preference: 'reference', 'cpu,auto'; 'measure' times them");
}

model::Execution execution_of(const ParsedOptions& parsed) {
  model::Execution execution;
  execution.dtype = parsed.value_or("dtype", execution.dtype);
  execution.device = parsed.value_or("device", execution.device);
  if (const auto names = parsed.value("kernels")) execution.kernels = split(*names, ',');
  initialize_device(execution.device);
  return execution;
}

} // namespace fvlm::cli
