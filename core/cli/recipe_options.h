// The options of every verb that takes a recipe: RECIPE, --set and --arg.
#pragma once
#include "cli/options.h"
#include "recipe/resolve.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace fvlm::cli {

void add_recipe_options(Options& options);

// A non-empty `file` replaces RECIPE: a second recipe with the same --set and --arg.
recipe::Request recipe_request(const ParsedOptions& parsed, const std::string& file = "");

// Throws RecipeError for sequences that are longer than the decoder's positions, where its folder can be read.
void require_positions(const recipe::Resolved& resolved);

// The JSON document of a verb that validates a recipe: "ok", the hash of the plan, and its stages.
nlohmann::ordered_json validation_json(const recipe::Resolved& resolved, bool ok);

// Bytes of --memory-mib; 0: not given. Throws Error(usage) for less than a mebibyte, and, unless `always` has a use for
// it, where no stage of the plan has packing.tokens = "memory".
int64_t requested_memory(const ParsedOptions& parsed, const plan::Plan& plan, bool always);

// The parts of a sample by their keys, as a source's `fields`: of --field PART=KEY. Throws Error(usage).
std::map<std::string, std::string> source_fields(const ParsedOptions& parsed);

// For a checkpoint RUN/STAGE/step-000100: the plan of its run, RUN/plan.json, and the name of its stage. For a model
// directory that was made from one: those that keep_plan() has kept. Nothing for others. Throws Error where a file
// cannot be read.
struct CheckpointPlan {
  plan::Plan plan;
  std::string stage;
};
std::optional<CheckpointPlan> plan_of_checkpoint(const std::filesystem::path& model);
// Keeps the plan and the stage that `model` was trained by in `out`, a model directory made from it, so that it is
// asked as it was trained.
void keep_plan(const std::filesystem::path& model, const std::filesystem::path& out);

// Throws Error(usage) where the recipe has no stage of that name.
const plan::Stage& stage_named(const plan::Plan& plan, const std::string& name);

} // namespace fvlm::cli
