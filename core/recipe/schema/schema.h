// The schema of recipes: every table an author can write, each declared once in this folder. Parsing, defaults, errors,
// --set, the Plan's JSON, recipes/REFERENCE.md and the editor stubs all derive from it.
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
Ref<std::vector<plan::Action>> action_schema(); // the return value of a `control` function

// Every record of the recipe and of the return values of `control`, the recipe first.
const std::vector<const RecordInfo*>& all_records();

// The functions of the `fvlm` table, for the Sandbox.
std::vector<Constructor> constructors();

// What to write in place of an option of another program that is a key of recipes, by its name here or elsewhere:
// "epochs", "batch_size", "output-dir". Empty: it is none.
std::string advice_on_option(const std::string& name);

// For what other programs call a micro-batch, or how many of them make a step.
inline constexpr const char* micro_batch_advice =
    "a stage's `batch` is the samples of an optimizer step; it is split into packs, and packing = { segments = N } "
    "limits one";

} // namespace fvlm::recipe
