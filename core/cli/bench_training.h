// The options of benchmarks that train: on what, and with what.
#pragma once
#include "bench/training.h"
#include "cli/options.h"

namespace fvlm::cli {

Options& with_training_options(Options& options);
// Loads the device, too.
void read_training_options(const ParsedOptions& parsed, bench::TrainingSetting& setting);

} // namespace fvlm::cli
