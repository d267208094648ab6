#include "cli/sampling_options.h"

namespace fvlm::cli {

Options& with_sampling_options(Options& options) {
  return options.value("temperature", "T", "sampling temperature; default 0: greedy")
      .value("top-k", "N", "sample from the N likeliest tokens; default 0: from all")
      .value("top-p", "P", "nucleus sampling: sample from the likeliest tokens with this total probability; default 1")
      .value("min-p", "P", "sample from tokens with at least this share of the likeliest one's probability; default 0")
      .value("repetition-penalty", "R", "make tokens that occurred less likely: 1.1, for example; default 1")
      .value("frequency-penalty", "R",
             "take so much from a token's logit for each time that the answer has it, -2 to 2; default 0")
      .value("presence-penalty", "R", "the same once for each token that the answer has; default 0")
      .value("seed", "N", "random seed of sampling; default 0");
}

infer::Sampling sampling_of(const ParsedOptions& parsed) {
  const bool samples = parsed.value("top-k") || parsed.value("top-p") || parsed.value("min-p");
  infer::Sampling sampling;
  sampling.temperature = parsed.number_or("temperature", samples ? 1 : 0);
  sampling.top_k = parsed.integer_or("top-k", sampling.top_k);
  sampling.top_p = parsed.number_or("top-p", sampling.top_p);
  sampling.min_p = parsed.number_or("min-p", sampling.min_p);
  sampling.repetition_penalty = parsed.number_or("repetition-penalty", sampling.repetition_penalty);
  sampling.frequency_penalty = parsed.number_or("frequency-penalty", sampling.frequency_penalty);
  sampling.presence_penalty = parsed.number_or("presence-penalty", sampling.presence_penalty);
  sampling.seed = static_cast<uint64_t>(parsed.integer_or("seed", 0));
  return sampling;
}

} // namespace fvlm::cli
