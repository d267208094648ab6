// How long a stage is once its data are there: epochs become samples, and samples steps.
#pragma once
#include "data/stream/cursor.h"
#include "recipe/plan.h"

namespace fvlm::train {

// The stage with the samples that `epochs`, of the stage or of all its sources, leave it; as it is where there are
// none. A schedule spans what comes out. Opens the shards' indices where it has to count. Throws Error(data).
// Warns of what ends earlier than the plan says, unless somebody else has.
plan::Stage with_length(const plan::Plan& plan, const plan::Stage& stage, bool warns = true);

// The stage's data are over: says where that was before the schedule's end, and why.
void warn_of_early_end(const plan::Stage& stage, const Cursor& end);

} // namespace fvlm::train
