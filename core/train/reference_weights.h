// The weights of the model that a stage starts from and compares with, kept once in the stage's own folder: whoever
// resumes the stage needs no checkpoint of another one.
#pragma once
#include "model/model.h"
#include "recipe/plan.h"

#include <filesystem>
#include <string>

namespace fvlm::train {

class ReferenceWeights {
 public:
  ReferenceWeights(const std::filesystem::path& run, const plan::Stage& stage);

  // Of the stage that begins. A disk that does not take them is warned of: resuming then needs the earlier checkpoint.
  void keep(const model::Parameters& parameters) const;

  // Fills the model with the weights that have this fingerprint: the stage's copy, or what a checkpoint of the stage
  // that it started from holds, be the rest of that damaged. False: neither has them.
  bool restore(model::Model& model, const std::string& fingerprint) const;

  // What to do where restore() found nothing.
  std::string advice() const;
  const std::filesystem::path& file() const { return file_; }

 private:
  bool restore_copy(model::Model& model, const std::string& fingerprint) const;
  bool restore_checkpoint(model::Model& model, const std::string& fingerprint) const;
  std::string stage_;
  std::filesystem::path file_, earlier_; // the copy; the folder of the stage that this one started from
};

} // namespace fvlm::train
