#include "train/stage_checkpoints.h"

#include "base/error.h"
#include "base/text.h"
#include "train/disk_space.h"
#include "train/stop_signals.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace fvlm::train {

StageCheckpoints::StageCheckpoints(RunContext& context, const plan::Stage& stage, RunState& state, StageModel& model)
    : context_(context), stage_(stage), state_(state), model_(model), folder_(context.folder / stage.name) {}

void StageCheckpoints::load(const std::filesystem::path& checkpoint) {
  load_checkpoint(checkpoint, *model_.model, *model_.optimization);
  saved_at_ = state_.step;
}

const UntrainedWeights& StageCheckpoints::untrained() {
  if (!untrained_) untrained_ = context_.sources.untrained(model_.model->parameters());
  return *untrained_;
}

void StageCheckpoints::check_room() {
  check_file_limit(folder_.path(),
                   optimizer_bytes(*model_.optimization) / static_cast<uint64_t>(context_.ranks.count()));
  if (!context_.ranks.is_first()) return;
  train::check_room(folder_.path(), checkpoint_bytes(*model_.model, *model_.optimization, untrained()),
                    kept_checkpoints(context_.plan.checkpoint, stage_), std::ssize(folder_.steps()));
}

void StageCheckpoints::save() {
  state_.optimizer_steps = model_.optimization->steps();
  write();
  saved_at_ = state_.step;
}

void StageCheckpoints::write() {
  const bool leads = context_.ranks.is_first();
  const auto position = context_.metrics.flush();
  if (leads) {
    state_.metrics_bytes = position.metrics;
    state_.events_bytes = position.events;
  }
  model_.with_original_weights(QuantizedWeights::Which::all, [&] {
    context_.writer.write(folder_, snapshot(context_.description, *model_.model, *model_.optimization, state_, leads,
                                            leads ? untrained() : UntrainedWeights()));
  });
}

// All ranks write again, since each has a part of the checkpoint.
void StageCheckpoints::wait_until_saved() {
  using namespace std::chrono;
  const auto until = steady_clock::now() + context_.write_patience;
  milliseconds pause(1000);
  const auto is_written = [&] { return context_.writer.wait(); };
  while (!context_.ranks.from_first(is_written() ? "" : "again").empty()) {
    if (context_.ranks.is_first()) pause_before_writing(until, pause);
    pause = std::min(2 * pause, milliseconds(30000));
    write();
  }
}

void StageCheckpoints::pause_before_writing(std::chrono::steady_clock::time_point until,
                                            std::chrono::milliseconds pause) const {
  using namespace std::chrono;
  const auto rest = duration_cast<milliseconds>(until - steady_clock::now());
  if (rest <= milliseconds(0) || StopSignals::stop_requested() || context_.writer.is_beyond_limit())
    throw Error(ErrorKind::stopped, "the last checkpoint of stage '{}', step {}, is not on disk: {}", stage_.name,
                state_.step, context_.writer.why_not())
        .at(folder_.of(state_.step).string())
        .advise("correct that, and start the same command again: it {}", resumed_from());
  pause = std::min(pause, rest);
  log_warning("stage '{}' ends when its last checkpoint is on disk; trying again in {}, for {} at most", stage_.name,
              human_duration(duration<double>(pause).count()), human_duration(duration<double>(rest).count()));
  for (const auto next = steady_clock::now() + pause; steady_clock::now() < next && !StopSignals::stop_requested();)
    std::this_thread::sleep_for(std::min(pause, milliseconds(50)));
}

// What the same command does now.
std::string StageCheckpoints::resumed_from() const {
  const auto steps = folder_.steps();
  return steps.empty() ? fmt::format("begins the stage '{}' anew, which has no checkpoint yet", stage_.name)
                       : fmt::format("resumes from {}", folder_.of(steps.back()).string());
}

std::optional<int64_t> StageCheckpoints::roll_back(const Trouble& trouble) {
  context_.writer.wait();
  std::optional<int64_t> last;
  if (context_.ranks.is_first()) last = folder_.newest();
  if (const int64_t step = std::stoll(context_.ranks.from_first(std::to_string(last.value_or(-1)))); step >= 0)
    last = step;
  const bool rolls_back = context_.plan.guard.rollback,
             may = rolls_back && last && state_.guard.rolled_back_to != *last;
  if (!may && !trouble.ends_run) return {};
  if (!may)
    throw Error(ErrorKind::diverged, trouble.what)
        .at("stage {}, step {}", stage_.name, state_.step)
        .advise(last ? fmt::format("the last good checkpoint is {}; a lower learning rate{} may help",
                                   folder_.of(*last).string(), rolls_back ? "" : ", or guard.rollback = true,")
                     : "the stage has no checkpoint yet, and the same command begins it anew; a lower learning rate or "
                       "a longer warmup may help");
  model_.with_original_weights(QuantizedWeights::Which::all,
                               [&] { load_checkpoint(folder_.of(*last), *model_.model, *model_.optimization); });
  context_.event(
      stage_.name, state_.step, "rollback",
      fmt::format("{}: back to the weights of step {}, on with the data of step {}", trouble.what, *last, state_.step));
  return last;
}

} // namespace fvlm::train
