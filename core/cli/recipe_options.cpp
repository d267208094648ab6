#include "cli/recipe_options.h"

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "budget/described_model.h"
#include "recipe/positions.h"

#include <fmt/format.h>

namespace fvlm::cli {

void add_recipe_options(Options& options) {
  options.positional("RECIPE", "a recipe (.lua), or a plan file that `plan --json` wrote (.json)")
      .value("set", "PATH=VALUE", "change a value of the plan, e.g. --set stages.align.samples=1000 (repeatable)")
      .value("arg", "NAME=VALUE", "set what fvlm.arg(\"NAME\") returns in the recipe (repeatable)");
}

recipe::Request recipe_request(const ParsedOptions& parsed, const std::string& file) {
  recipe::Request request;
  request.file = file.empty() ? *parsed.value("RECIPE") : file;
  request.sets = parsed.values("set");
  request.library = program_folder() / ".." / "share" / "fvlm" / "recipes" / "lib";
  for (const auto& word : parsed.values("arg")) {
    size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorKind::usage, fmt::format("--arg: expected NAME=VALUE, got '{}'", word))
          .advise("for example --arg data=/data, for a recipe that reads fvlm.arg(\"data\")");
    request.args[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return request;
}

void require_positions(const recipe::Resolved& resolved) {
  if (const auto positions = budget::decoder_positions(resolved.plan.model))
    recipe::require_positions(resolved, *positions);
}

nlohmann::ordered_json validation_json(const recipe::Resolved& resolved, bool ok) {
  nlohmann::ordered_json document = {{"ok", ok}, {"hash", resolved.hash}, {"stages", nlohmann::ordered_json::array()}};
  for (const auto& stage : resolved.plan.stages) {
    document["stages"].push_back({{"name", stage.name}, {"samples", stage.samples}});
    if (stage.steps) document["stages"].back()["steps"] = *stage.steps;
  }
  return document;
}

const plan::Stage& stage_named(const plan::Plan& plan, const std::string& name) {
  std::vector<std::string> names;
  for (const plan::Stage& stage : plan.stages) {
    if (stage.name == name) return stage;
    names.push_back(stage.name);
  }
  Error error(ErrorKind::usage, fmt::format("the recipe has no stage '{}'", name));
  const auto near = nearest(name, names);
  throw error.advise(near ? fmt::format("did you mean '{}'?", *near) : "it has " + join_or(names));
}

} // namespace fvlm::cli
