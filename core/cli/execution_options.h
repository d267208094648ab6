// The options of every verb that runs a model: device, dtype and kernels.
#pragma once
#include "cli/options.h"
#include "model/execution.h"

namespace fvlm::cli {

// Adds --dtype, --device, --kernels, and those of with_plugin_options(). Unless they say otherwise a model runs on the
// CPU in fp32, so that its numbers are those of every machine.
Options& with_execution_options(Options& options);

// The same for verbs that answer: unless they say otherwise a model runs on a GPU that is there, in bf16.
Options& with_answering_options(Options& options);

// Also initialize LibTorch for the device.
model::Execution execution_of(const ParsedOptions& parsed);
model::Execution answering_execution_of(const ParsedOptions& parsed);

} // namespace fvlm::cli
