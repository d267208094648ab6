// Samples of a set for people to read: question, expected and generated answer, frames, and attention maps.
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

// Writes the first `show` samples of the set, encoded in its first mode, with generated answers. Replaces the files of
// an earlier step.
void show(const SampleSet& set, const model::Model& model, ops::Operations& ops, const ShowRequest& request);

} // namespace fvlm::evaluation
