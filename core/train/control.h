// `control`: the recipe's function that looks at a stage between steps. What it answers is journaled before it is done,
// so that a run that was killed behind it does the same again without asking. Answers under another plan are not taken.
#pragma once
#include "dist/ranks.h"
#include "recipe/plan.h"
#include "recipe/sandbox.h"
#include "report/record_file.h"
#include "train/state.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::train {

class ControlCalls {
 public:
  // `lua` is null for a plan file. Throws Error(recipe) where the stage has a function and nobody to call it through.
  // Damaged lines of the journal are reported and not used. The first rank calls the function, for all.
  ControlCalls(const plan::Stage& stage, std::string plan_hash, std::shared_ptr<recipe::Sandbox> lua,
               std::filesystem::path journal, const dist::Ranks& ranks);

  bool due(int64_t step) const { return stage_.control && step % stage_.control->every == 0; }
  // Calls the function, or finds its answer in the journal; `memory` is what it keeps, JSON. Every rank calls it.
  std::vector<plan::Action> answer(int64_t step, const std::map<std::string, double>& metrics, std::string& memory);

 private:
  struct Entry {
    std::string actions, memory;
  };
  void read(const std::string& line); // of the journal; throws Error(data) or nlohmann's error for a damaged one
  Entry answer_of_first(int64_t step, const std::map<std::string, double>& metrics, const std::string& memory);

  const plan::Stage& stage_;
  const dist::Ranks& ranks_;
  std::string plan_hash_;
  std::shared_ptr<recipe::Sandbox> lua_;
  std::optional<report::RecordFile> journal_; // of a stage with a function
  std::map<int64_t, Entry> known_;            // of this stage and plan, by step
};

} // namespace fvlm::train
