// The schema of recipes: every table an author can write, each declared in one place of this folder. From it follow
// parsing, defaults, errors, --set, the Plan's JSON, recipes/REFERENCE.md and the editor's stubs.
#pragma once
#include "recipe/plan.h"
#include "recipe/sandbox.h"
#include "recipe/schema/type.h"

#include <vector>

namespace fvlm::recipe {

Ref<plan::Plan> recipe_schema(); // the root: fvlm.recipe { }

Ref<plan::Model> model_schema();
Ref<plan::Mix> mix_schema();
Ref<std::vector<plan::Term>> objective_schema();
Ref<plan::Optimizer> optimizer_schema();
Ref<plan::Schedule> schedule_schema();
Ref<plan::Stage> stage_schema();
Ref<plan::Evaluation> evaluation_schema();
Ref<std::vector<plan::Action>> action_schema(); // what a `control` function answers

// Every record below the recipe and below `control`'s answers, the recipe first.
const std::vector<const RecordInfo*>& all_records();

// The functions of the `fvlm` table, for the Sandbox.
std::vector<Constructor> constructors();

} // namespace fvlm::recipe
