// What a `control` function keeps between its calls, as it is saved with checkpoints.
#pragma once
#include "recipe/resolve.h"
#include "recipe/schema/type.h"

namespace fvlm::recipe {

// Throws Error(recipe) at the function's line for what no checkpoint can hold: a function, a text that is not UTF-8, a
// table with numbered and named entries.
Json control_memory_json(const Value& memory);

// Calls each stage's control function once, with an empty memory and metrics of a first step, and throws where what it
// keeps could not be saved. Whether it understands those metrics is not judged. The calls may change the recipe's own
// variables, so `resolved` is not to be trained from afterwards.
void check_controls(const Resolved& resolved);

} // namespace fvlm::recipe
