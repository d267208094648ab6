// What the schema cannot say of a single table: how the parts of a Plan fit together, and what follows from them.
#pragma once
#include "recipe/plan.h"
#include "recipe/schema/reader.h"

namespace fvlm::recipe {

// Reports what does not fit. Looks only at parts that were read without a mistake.
void check_plan(Reader& reader, const plan::Plan& plan);

// Fills what the recipe left to be derived: the chain of stages, rates by group, steps, the sizes of fresh towers.
// For a Plan without mistakes. Values that came from a `default` entry get its origin.
void derive(Reader& reader, plan::Plan& plan);

// Of a stage whose samples are known: how many steps they are, and how many of those warm up.
void derive_steps(plan::Stage& stage);

} // namespace fvlm::recipe
