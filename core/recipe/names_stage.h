// What a recipe names by a stage's name or by a path.
#pragma once
#include "recipe/plan.h"

#include <algorithm>
#include <string>

namespace fvlm::plan {

// Whether `from` of a stage, or `teacher` of a term, is a stage of the plan. Otherwise it is a path, or "model".
inline bool names_stage(const Plan& plan, const std::string& named) {
  return std::ranges::any_of(plan.stages, [&](const Stage& stage) { return stage.name == named; });
}

} // namespace fvlm::plan
