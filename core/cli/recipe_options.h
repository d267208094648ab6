// The options of every verb that begins with a recipe: RECIPE, --set, --arg.
#pragma once
#include "cli/options.h"
#include "recipe/resolve.h"

#include <nlohmann/json.hpp>

namespace fvlm::cli {

void add_recipe_options(Options& options);

// `file` instead of RECIPE: for a second recipe under the same --set and --arg.
recipe::Request recipe_request(const ParsedOptions& parsed, const std::string& file = "");

// "ok", the plan's hash and its stages: what a verb answers that checks a recipe.
nlohmann::ordered_json checked(const recipe::Resolved& resolved, bool ok);

// The stage of that name. Throws Error(usage).
const plan::Stage& stage_named(const plan::Plan& plan, const std::string& name);

} // namespace fvlm::cli
