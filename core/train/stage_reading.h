// A stage's data read once before it trains, for what frozen models make of them.
#pragma once
#include "train/run_context.h"
#include "train/stage_data.h"

#include <functional>
#include <string>

namespace fvlm::train {

// Hands every pack of the stage to `take` that has a sample which is not yet `known`, in packs as the stage will have
// them: those of its own model are then computed in the same order. `what` names the work in the progress line. Returns
// whether all packs were read: a stop may have been requested.
bool read_stage(RunContext& context, const plan::Stage& stage, const StageData& data, const std::string& what,
                const std::function<bool(const PackedSample&)>& known,
                const std::function<void(const HostPack&)>& take);

} // namespace fvlm::train
