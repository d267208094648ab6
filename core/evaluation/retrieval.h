// How well a set's queries find their positives, by the embeddings that /v1/embeddings would answer.
#pragma once
#include "evaluation/sample_set.h"
#include "evaluation/score.h"

#include <string>
#include <utility>
#include <vector>

namespace fvlm::evaluation {

// Of each retrieval sample of a pack, its inputs.
std::vector<SampleScore> embed_pack(const SampleSet& set, const HostPack& loaded, const model::Model& model,
                                    ops::Operations& ops, const std::string& mode);

// Each query is compared with the positives and negatives of all samples; those of equal content are one, and positives
// of an equal query count as no wrong find. recall_at_1, recall_at_5: the share of queries whose positive is among so
// many nearest; mrr: the mean of 1 / rank; candidates: how many there are. A tie counts against the positive.
std::vector<std::pair<std::string, double>> retrieval_values(const std::vector<SampleScore>& samples);

} // namespace fvlm::evaluation
