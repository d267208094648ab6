// What several decoders answer together that read the same latents: of the answers that each of them generates, the one
// that all together find likeliest.
#pragma once
#include "evaluation/score.h"

#include <string>
#include <vector>

namespace fvlm::evaluation {

struct JointAnswer {
  std::vector<std::string> answers; // of each decoder
  size_t chosen = 0;                // the one of the largest log-probability, summed over its tokens and all decoders
  Answers expected;
};

// In the order of the samples, which the decoders' `scores` hold with what each of them generated. Empty for a set with
// samples that are no questions about a context. With several ranks each reads a share of the packs, and all have the
// answers of all; every rank calls it.
std::vector<JointAnswer> joint_answers(const SampleSet& set, const model::Model& model, ops::Operations& ops,
                                       const std::string& mode, const std::vector<Scores>& scores,
                                       const dist::Ranks* ranks);

} // namespace fvlm::evaluation
