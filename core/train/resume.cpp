#include "train/resume.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "model/weights/model_file.h"
#include "train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fvlm::train {

namespace fs = std::filesystem;

// The folder of the run that a checkpoint lies in: RUN/STAGE/STEP.
static fs::path run_of(const fs::path& checkpoint) {
  std::error_code ignored;
  return fs::weakly_canonical(checkpoint / "training_state", ignored).parent_path().parent_path().parent_path();
}

// Checksums prove that its files were written together; state.json and fvlm.json, which are among them, of what.
RunState RunCheckpoints::proven(const fs::path& checkpoint) const {
  RunState state = read_state(checkpoint);
  const ModelFile model = ModelFile::read(checkpoint);
  const bool inside = is_inside(checkpoint);
  const auto refuse = [&](std::string what, const std::string& advice) {
    const char* remove = "move it out of the run's folder";
    throw Error(ErrorKind::data, std::move(what))
        .at(checkpoint.string())
        .advise(!inside          ? advice
                : advice.empty() ? remove
                                 : fmt::format("{}; {}", remove, advice));
  };
  if (model.stage != state.stage || model.step != state.step || model.plan_hash != state.plan_hash)
    refuse(
        fmt::format("fvlm.json is of stage '{}', step {}, and training_state/ of stage '{}', step {}: these are files "
                    "of two checkpoints",
                    model.stage, model.step, state.stage, state.step),
        inside ? "" : "name another checkpoint");
  if (!state.run_id.empty() && !record_.id.empty() && state.run_id != record_.id)
    refuse(fmt::format("this checkpoint belongs to another run: its id is {}, and this run's is {}", state.run_id,
                       record_.id),
           advice_on_another_run(checkpoint));
  if (record_.id.empty() && !inside)
    refuse(fmt::format("this checkpoint belongs to another run{}, and {} has none to resume",
                       state.run_id.empty() ? "" : fmt::format(" (its id is {})", state.run_id), run_.string()),
           advice_on_another_run(checkpoint));
  if (!any_plan_ && !record_.has_plan(state.plan_hash))
    refuse(fmt::format("this checkpoint belongs to a plan that this run was never trained under (hash {})",
                       state.plan_hash.substr(0, 12)),
           "--allow-plan-change resumes from it with the present plan");
  return state;
}

bool RunCheckpoints::is_inside(const fs::path& checkpoint) const {
  std::error_code ignored;
  return fs::equivalent(run_of(checkpoint), run_, ignored);
}

std::string RunCheckpoints::advice_on_another_run(const fs::path& checkpoint) const {
  std::error_code ignored;
  std::string advice = fmt::format("--from {} starts a stage with its weights", checkpoint.string());
  if (const fs::path owner = run_of(checkpoint); !is_inside(checkpoint) && fs::exists(owner / "run.json", ignored))
    advice += fmt::format("; --run-dir {} resumes its own run", owner.string());
  return advice;
}

RunState RunCheckpoints::proven(const std::string& stage, int64_t step) const {
  const fs::path checkpoint = StageFolder(run_ / stage).of(step);
  RunState state = proven(checkpoint);
  if (state.stage != stage || state.step != step)
    throw Error(ErrorKind::data, "this is the checkpoint of stage '{}', step {}", state.stage, state.step)
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

Place RunCheckpoints::peek(const Stages& stages) const {
  refuse_stages_behind(stages);
  for (size_t i = stages.size(); i-- > 0;) {
    const StageFolder folder(run_ / stages[i]->name);
    if (const auto steps = folder.steps(); !steps.empty())
      return place_of(folder.of(steps.back()), proven(stages[i]->name, steps.back()), stages);
  }
  return {};
}

Place RunCheckpoints::named(const fs::path& checkpoint, const Stages& stages) const {
  verify_checkpoint(checkpoint);
  return place_of(checkpoint, proven(checkpoint), stages);
}

Place RunCheckpoints::place_of(const fs::path& checkpoint, RunState state, const Stages& stages) const {
  const auto stage = std::ranges::find_if(stages, [&](const plan::Stage* one) { return one->name == state.stage; });
  if (stage == stages.end())
    throw Error(ErrorKind::usage, "this is a checkpoint of the stage '{}', which is not to be run", state.stage)
        .at(checkpoint.string());
  return {static_cast<size_t>(stage - stages.begin()), checkpoint, std::move(state)};
}

// Metrics are one row of lines: a stage cannot be run again with later ones behind it.
void RunCheckpoints::refuse_stages_behind(const Stages& stages) const {
  bool behind = false;
  for (const plan::Stage& stage : plan_.stages) {
    if (behind && !StageFolder(run_ / stage.name).steps().empty())
      throw Error(ErrorKind::usage, "the run has trained '{}' already, which comes after it", stage.name)
          .at(run_.string())
          .advise("train into another folder: --run-dir");
    behind = behind || &stage == stages.back();
  }
}

fs::path RunCheckpoints::finished(const std::string& stage) const {
  const StageFolder folder(run_ / stage);
  const auto step = folder.newest();
  if (!step || !proven(stage, *step).stage_done)
    throw Error(ErrorKind::usage, "the stage '{}', whose model this one needs, is not done", stage)
        .at(run_.string())
        .advise("train it first; or name a path in its place, as --from PATH does of what a stage begins from");
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

std::string adopt_data(RunState& state, const StageData& data, const fs::path& run, bool allowed) {
  const std::vector<uint64_t> before = std::exchange(state.data, data.content_hashes());
  if (before.size() != state.data.size()) return "";
  std::vector<std::string> changed;
  for (size_t i = 0; i < before.size(); ++i)
    if (before[i] != state.data[i]) changed.push_back(data.source_names()[i]);
  if (changed.empty()) return "";
  std::string text =
      fmt::format("the data have changed since the first {} of stage '{}', though they are as many samples: {}",
                  counted(state.step, "step"), state.stage, join(changed, ", "));
  if (allowed) return text;
  throw Error(ErrorKind::data, std::move(text))
      .at(run.string())
      .advise("restore them, or train into another folder with --run-dir; --allow-plan-change resumes with them as "
              "they are now");
}

void RunCheckpoints::link() const {
  for (const plan::Stage& stage : plan_.stages) StageFolder(run_ / stage.name).link();
}

} // namespace fvlm::train
