// The options of every verb that runs a model: device, dtype and kernels.
#pragma once
#include "cli/options.h"
#include "model/execution.h"

namespace fvlm::cli {

// Adds --dtype, --device, --kernels, and those of with_plugin_options().
Options& with_execution_options(Options& options);

// Also initializes LibTorch for the device.
model::Execution execution_of(const ParsedOptions& parsed);

} // namespace fvlm::cli
