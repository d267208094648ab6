// StageCheckpoints: saves what a stage has learnt, surely where the stage ends or the run stops, and goes back to it.
#pragma once
#include "train/guard.h"
#include "train/run_context.h"
#include "train/stage_model.h"
#include "train/state.h"

#include <chrono>
#include <optional>
#include <string>

namespace fvlm::train {

class StageCheckpoints {
 public:
  StageCheckpoints(RunContext& context, const plan::Stage& stage, RunState& state, StageModel& model);

  const StageFolder& folder() const { return folder_; }
  // Fills the model and its optimizer.
  void load(const std::filesystem::path& checkpoint);
  // Throws Error where the stage's folder cannot be written or its disk does not hold a checkpoint.
  void check_room();

  bool is_saved() const { return saved_at_ == state_.step; }
  // Writes the state as it is, beside the training, with the metrics that are on disk by then.
  void save();
  // Waits until the last save() is on disk, and tries again where it is not: a disk may get well again. Throws
  // Error(stopped) where it does not within the run's patience, or where the run is asked to stop.
  void wait_until_saved();
  // The stage's last checkpoint has to be written again, with what came after its step.
  void mark_unsaved() { saved_at_ = -1; }

  // Back to the weights of the last checkpoint, whose step it returns; the data that led away from them are not read
  // again. Where that is not allowed, or was done before: nothing, or Error(diverged) for trouble that ends the run.
  std::optional<int64_t> roll_back(const Trouble& trouble);

 private:
  void write();
  const UntrainedWeights& untrained();
  void pause_before_writing(std::chrono::steady_clock::time_point until, std::chrono::milliseconds pause) const;
  std::string resumed_from() const;

  RunContext& context_;
  const plan::Stage& stage_;
  RunState& state_;
  StageModel& model_;
  StageFolder folder_;
  int64_t saved_at_ = -1;
  std::optional<UntrainedWeights> untrained_; // of the whole stage; of the first rank
};

} // namespace fvlm::train
