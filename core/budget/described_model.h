// The model that a Plan names, known from its configs alone: towers from folders or as the recipe describes them, the
// connector as it says.
#pragma once
#include "model/weights/model_directory.h"
#include "recipe/plan.h"

namespace fvlm::budget {

// All but the parameters. Throws Error(data) for folders that make no sense.
ModelDescription describe(const plan::Plan& plan);

} // namespace fvlm::budget
