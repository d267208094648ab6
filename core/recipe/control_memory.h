// The memory table that a `control` function keeps between calls, as it is saved with checkpoints.
#pragma once
#include "recipe/resolve.h"
#include "recipe/schema/type.h"

namespace fvlm::recipe {

// Throws Error(recipe) at the function's line for a value that a checkpoint cannot hold: a function, a string that is
// not UTF-8, or a table with both numbered and named entries.
Json control_memory_json(const Value& memory);
// The memory as the function sees it, of what control_memory_json() returned.
Value control_memory(const Json& saved, const Origin& origin);

// Calls each stage's control function once, with an empty memory and the metrics of a first step, and throws where the
// memory could not be saved. Other errors of the function are ignored. The calls may change variables of the recipe, so
// do not train from `resolved` afterwards.
void check_controls(const Resolved& resolved);

} // namespace fvlm::recipe
