// The teachers of a stage that do not change: what they make of the stage's samples is computed once before training.
#pragma once
#include "train/run_context.h"
#include "train/stage_data.h"
#include "train/stage_model.h"
#include "train/thread_replicas.h"

#include <functional>

namespace fvlm::train {

// Throws Error(recipe) where a cached teacher would change during the stage, because the stage trains a part of it.
void check_cached_teachers(const plan::Stage& stage, const model::Parameters& policy);

// Fills Frozen::teacher_cache with what it does not hold yet. `cache_pack` computes the hidden states of a pack, whose
// texts of teachers fit into a pack of the stage.
void cache_teachers(RunContext& context, const plan::Stage& stage, const StageModel& model, const StageData& data,
                    ThreadReplicas& replicas, const std::function<void(const HostPack& pack)>& cache_pack);

} // namespace fvlm::train
