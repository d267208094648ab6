// The work of `train --find-batch`: finds the largest pack of each stage and prints it as a table and as recipe lines.
#pragma once
#include "train/run.h"

#include <cstdint>

namespace fvlm::cli {

// With `memory` (bytes) 0 the limit is the free memory. Returns exit code 0 where every stage has a pack that fits,
// else 1.
int search_batches(const plan::Plan& plan, const train::TrainRequest& request, Registry& registry, int64_t memory,
                   bool json);

} // namespace fvlm::cli
