#include "train/resume.h"

#include "base/error.h"
#include "base/log.h"
#include "model/weights/model_file.h"
#include "train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::train {

namespace fs = std::filesystem;

// Checksums prove that its files were written together; state.json and fvlm.json, which are among them, of what.
RunState RunCheckpoints::proven(const fs::path& checkpoint) const {
  RunState state = read_state(checkpoint);
  const ModelFile model = ModelFile::read(checkpoint);
  const auto refuse = [&](std::string what, std::string advice) {
    throw Error(ErrorKind::data, std::move(what)).at(checkpoint.string()).advise(std::move(advice));
  };
  if (model.stage != state.stage || model.step != state.step || model.plan_hash != state.plan_hash)
    refuse(
        fmt::format("fvlm.json is of stage '{}', step {}, and training_state/ of stage '{}', step {}: these are files "
                    "of two checkpoints",
                    model.stage, model.step, state.stage, state.step),
        "move it out of the run's folder");
  if (!state.run_id.empty() && !record_.id.empty() && state.run_id != record_.id)
    refuse(fmt::format("this checkpoint belongs to another run: its id is {}, and this run's is {}", state.run_id,
                       record_.id),
           "move it out of the run's folder; --from CHECKPOINT begins a stage with its weights");
  if (!any_plan_ && !record_.has_plan(state.plan_hash))
    refuse(fmt::format("this checkpoint belongs to a plan that this run was never trained under (hash {})",
                       state.plan_hash.substr(0, 12)),
           "move it out of the run's folder; or --allow-plan-change resumes from it with the plan of now");
  return state;
}

RunState RunCheckpoints::proven(const std::string& stage, int64_t step) const {
  const fs::path checkpoint = StageFolder(run_ / stage).of(step);
  RunState state = proven(checkpoint);
  if (state.stage != stage || state.step != step)
    throw Error(ErrorKind::data, fmt::format("this is the checkpoint of stage '{}', step {}", state.stage, state.step))
        .at(checkpoint.string())
        .advise("move it out of the run's folder: another one's place is here");
  return state;
}

Place RunCheckpoints::newest(const Stages& stages) const {
  refuse_stages_behind(stages);
  for (size_t i = stages.size(); i-- > 0;) {
    const StageFolder folder(run_ / stages[i]->name);
    folder.tidy();
    if (const auto step = folder.newest()) return place_of(folder.of(*step), proven(stages[i]->name, *step), stages);
  }
  // A stage before them may have one: its lines of metrics stay.
  for (auto stage = plan_.stages.rbegin(); stage != plan_.stages.rend(); ++stage)
    if (const auto step = StageFolder(run_ / stage->name).newest()) return {0, {}, proven(stage->name, *step)};
  return {};
}

Place RunCheckpoints::named(const fs::path& checkpoint, const Stages& stages) const {
  verify_checkpoint(checkpoint);
  return place_of(checkpoint, proven(checkpoint), stages);
}

Place RunCheckpoints::place_of(const fs::path& checkpoint, RunState state, const Stages& stages) const {
  const auto stage =
      std::find_if(stages.begin(), stages.end(), [&](const plan::Stage* one) { return one->name == state.stage; });
  if (stage == stages.end())
    throw Error(ErrorKind::usage,
                fmt::format("this is a checkpoint of the stage '{}', which is not to be run", state.stage))
        .at(checkpoint.string());
  log_info("resumes at stage {}, step {} ({})", state.stage, state.step, checkpoint.string());
  return {static_cast<size_t>(stage - stages.begin()), checkpoint, std::move(state)};
}

// Metrics are one row of lines: a stage cannot be run again with later ones behind it.
void RunCheckpoints::refuse_stages_behind(const Stages& stages) const {
  bool behind = false;
  for (const plan::Stage& stage : plan_.stages) {
    if (behind && !StageFolder(run_ / stage.name).steps().empty())
      throw Error(ErrorKind::usage, fmt::format("the run has trained '{}' already, which comes after it", stage.name))
          .at(run_.string())
          .advise("train into another folder: --run-dir");
    behind = behind || &stage == stages.back();
  }
}

fs::path RunCheckpoints::finished(const std::string& stage) const {
  const StageFolder folder(run_ / stage);
  const auto step = folder.newest();
  if (!step || !proven(stage, *step).stage_done)
    throw Error(ErrorKind::usage, fmt::format("the stage '{}', which this one begins from, is not done", stage))
        .at(run_.string())
        .advise("train it first, or name what to begin from: --from PATH");
  return folder.of(*step);
}

// Somebody went back to an earlier checkpoint: what was trained behind it has no lines of metrics any more, and nobody
// is to resume from it.
void RunCheckpoints::set_aside_behind(const RunState& state) const {
  for (auto stage = plan_.stages.rbegin(); stage != plan_.stages.rend(); ++stage) {
    const bool here = stage->name == state.stage;
    StageFolder(run_ / stage->name).set_aside(here ? state.step : -1);
    if (here) return;
  }
}

void RunCheckpoints::link() const {
  for (const plan::Stage& stage : plan_.stages) StageFolder(run_ / stage.name).link();
}

} // namespace fvlm::train
