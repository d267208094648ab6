// Which stages several ranks can train with a part of each pack's rows each (--context-parallel).
#pragma once
#include "recipe/plan.h"

#include <vector>

namespace fvlm::train {

// Throws Error(usage) that names the stage and what of it cannot be divided.
void require_context_parallel(const plan::Plan& plan, const std::vector<const plan::Stage*>& stages);

} // namespace fvlm::train
