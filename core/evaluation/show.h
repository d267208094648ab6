// Samples of a set for people: the question, what the model itself answers, and where it looked, frame by frame.
#pragma once
#include "evaluation/sample_set.h"
#include "model/model.h"

#include <filesystem>
#include <string>

namespace fvlm::evaluation {

struct ShowRequest {
  std::filesystem::path folder; // of the stage's shown samples: gets SET/NNN.json and SET/NNN-FRAME.png
  std::string stage;
  int64_t step = 0;
  int64_t tokens = 64; // of an answer, at most
};

// The first samples of the set, as many as it wants shown: read in the first of its modes, answered as in use. Replaces
// what an earlier step showed.
void show(const SampleSet& set, const model::Model& vlm, ops::Operations& ops, const ShowRequest& request);

} // namespace fvlm::evaluation
