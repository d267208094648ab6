// Whether a run's disk has room for the checkpoints that a stage will write, asked before its first step.
#pragma once
#include "model/model.h"
#include "recipe/plan.h"
#include "train/optimization.h"
#include "train/weight_sources.h"

#include <cstdint>
#include <filesystem>

namespace fvlm::train {

// Bytes of tensors in a checkpoint of the stage.
uint64_t checkpoint_bytes(const model::Model& model, const Optimization& optimization,
                          const UntrainedWeights& untrained);

// Of them, those of the optimizer's state.
uint64_t optimizer_bytes(const Optimization& optimization);

// How many checkpoints of the stage the plan keeps at most, the one that is being written not counted.
int64_t kept_checkpoints(const plan::Checkpoint& plan, const plan::Stage& stage);

// Throws Error where a file of so many bytes is larger than this process may write (ulimit -f).
void check_file_limit(const std::filesystem::path& stage_folder, uint64_t bytes);

// Throws Error where `stage_folder` cannot be written or its disk does not hold one checkpoint of so many bytes; warns
// where it does not hold all that the plan keeps besides the `there` that exist.
void check_room(const std::filesystem::path& stage_folder, uint64_t bytes, int64_t kept, int64_t there);

} // namespace fvlm::train
