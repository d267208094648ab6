// The options of verbs that generate answers: how a token is drawn.
#pragma once
#include "cli/options.h"
#include "infer/sampling.h"

namespace fvlm::cli {

// Adds --temperature, --top-k, --top-p, --min-p, --repetition-penalty and --seed.
Options& with_sampling_options(Options& options);

// Settings of the distribution imply a temperature of 1, since they would have no effect on greedy decoding.
infer::Sampling sampling_of(const ParsedOptions& parsed);

} // namespace fvlm::cli
