// The options of benchmarks that train: device, precision, kernels and switches.
#pragma once
#include "bench/training.h"
#include "cli/options.h"

namespace fvlm::cli {

Options& with_training_options(Options& options);
// Also initializes the device.
void read_training_options(const ParsedOptions& parsed, bench::TrainingSetting& setting);

} // namespace fvlm::cli
