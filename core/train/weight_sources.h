// WeightSources: the files that a run's weights came from. A checkpoint stores weights that nothing has trained with
// the bytes that they have there, and not as the run's precision rounds them.
#pragma once
#include "model/parameters.h"
#include "model/weights/model_directory.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fvlm::train {

// Frozen parameters by their names in the model directory, as their files have them. Those whose files have the model's
// own dtype, and nothing else to keep, are not among them.
using UntrainedWeights = std::map<std::string, at::Tensor>;

class WeightSources {
 public:
  explicit WeightSources(ModelDescription description) : description_(std::move(description)) {}
  // Weights were loaded from this directory, too.
  void add(const ModelDirectory& directory) { directories_.push_back(directory); }

  // Compares numbers: what an earlier stage has trained is in none of the files. The tensors are over their bytes,
  // which are there as long as this is.
  UntrainedWeights untrained(const model::Parameters& parameters) const;

 private:
  ModelDescription description_; // its parts' folders
  std::vector<ModelDirectory> directories_;
};

} // namespace fvlm::train
