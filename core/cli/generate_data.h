// `generate --data`: answers every sample of files, many at once, into a file with a line for each.
#pragma once
#include "cli/options.h"
#include "infer/generator.h"

namespace fvlm::cli {

// Adds --data, --answers, --cache-rows and those of samples.
Options& with_data_options(Options& options);

// `how`: what the options say of every answer. Returns the exit code. Throws Error(data) at the end where a sample has
// no answer.
int answer_data(const ParsedOptions& parsed, const infer::GenerateOptions& how);

} // namespace fvlm::cli
