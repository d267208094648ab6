// `train --find-batch`: the largest pack of each stage, as a table and as lines for the recipe.
#pragma once
#include "train/run.h"

#include <cstdint>

namespace fvlm::cli {

// `memory_mib` 0: what the machine can spare. Returns 0 where every stage has a pack that fits, else 1.
int search_batches(const plan::Plan& plan, const train::TrainRequest& request, Registry& registry, int64_t memory_mib,
                   bool json);

} // namespace fvlm::cli
