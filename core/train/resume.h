// Where a run resumes: the stage, its checkpoint, and the proof that this checkpoint is one of the run's own.
#pragma once
#include "recipe/plan.h"
#include "train/run_record.h"
#include "train/stage_data.h"
#include "train/state.h"

#include <filesystem>
#include <string>
#include <vector>

namespace fvlm::train {

// Of the stages that are to run.
struct Place {
  size_t stage = 0;
  std::filesystem::path checkpoint; // that is loaded; empty: the stage begins
  RunState state;
};

class RunCheckpoints {
 public:
  using Stages = std::vector<const plan::Stage*>;

  // `any_plan`: also those of plans that the record does not know. All three outlive it.
  RunCheckpoints(const plan::Plan& plan, std::filesystem::path run, const RunRecord& record, bool any_plan)
      : plan_(plan), run_(std::move(run)), record_(record), any_plan_(any_plan) {}

  // The newest whole checkpoint of the last of these stages that has one.
  Place newest(const Stages& stages) const;
  // The same place, found without renaming damaged checkpoints: none of them is read whole.
  Place peek(const Stages& stages) const;
  // The checkpoint that somebody named.
  Place named(const std::filesystem::path& checkpoint, const Stages& stages) const;
  // The last checkpoint of a stage that is done. Throws Error(usage) where it is not.
  std::filesystem::path finished(const std::string& stage) const;

  // Renames what the run has trained behind the state that it goes back to.
  void set_aside_behind(const RunState& state) const;
  // The links `latest` and `best` of every stage.
  void link() const;

 private:
  void refuse_stages_behind(const Stages& stages) const;
  Place place_of(const std::filesystem::path& checkpoint, RunState state, const Stages& stages) const;
  RunState proven(const std::filesystem::path& checkpoint) const;
  bool is_inside(const std::filesystem::path& checkpoint) const;
  std::string advice_on_another_run(const std::filesystem::path& checkpoint) const;
  RunState proven(const std::string& stage, int64_t step) const;

  const plan::Plan& plan_;
  std::filesystem::path run_;
  const RunRecord& record_;
  bool any_plan_;
};

// The state is of these data from here on. Returns in words which sources are not those that its steps have read, and
// throws Error(data) in place of that unless the change is `allowed`; empty: all are, or it is not known.
std::string adopt_data(RunState& state, const StageData& data, const std::filesystem::path& run, bool allowed);

} // namespace fvlm::train
