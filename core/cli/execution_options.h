// The options that say what a model runs on and with, the same for every verb that runs one.
#pragma once
#include "cli/options.h"
#include "model/execution.h"

namespace fvlm::cli {

// Adds --dtype, --device, --kernels, and those of with_plugin_options().
Options& with_execution_options(Options& options);

// Makes LibTorch ready for the device.
model::Execution execution_of(const ParsedOptions& parsed);

} // namespace fvlm::cli
