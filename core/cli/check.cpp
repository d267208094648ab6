// fvlm-engine check: is the recipe right? All its mistakes at once, or a line that says what it will do.
#include "base/terminal.h"
#include "cli/recipe_options.h"
#include "recipe/files.h"
#include "recipe/print.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fvlm::cli {
namespace {

using Json = nlohmann::ordered_json;

Json as_json(const recipe::RecipeError& error) {
  Json mistakes = Json::array();
  for (const auto& mistake : error.mistakes())
    mistakes.push_back({{"file", mistake.origin.file},
                        {"line", mistake.origin.line},
                        {"path", mistake.path},
                        {"what", mistake.what},
                        {"advice", mistake.advice}});
  return {{"ok", false}, {"mistakes", mistakes}};
}

// True when all is there.
bool report_files(const recipe::Resolved& resolved, Json* json) {
  auto missing = recipe::missing_files(resolved);
  if (json) (*json)["missing"] = Json::array();
  for (const auto& file : missing) {
    if (json)
      (*json)["missing"].push_back({{"file", file.file}, {"path", file.path}, {"from", file.source}});
    else
      fmt::print(stderr, "missing: {}  ({}, {})\n", file.file, file.path, file.source);
  }
  return missing.empty();
}

} // namespace

int run_check(Arguments arguments) {
  Options options("check RECIPE [--files] [--set PATH=VALUE] [--arg NAME=VALUE] [--json]",
                  "Validates a recipe. Exit code 0: it is right; 3: it has mistakes, which are listed; with --files, "
                  "4: files are missing.",
                  "check recipes/quickstart.lua");
  add_recipe_options(options);
  options.flag("files", "also look whether models, checkpoints and data are there")
      .flag("json", "one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;

  bool json = parsed->flag("json");
  try {
    auto resolved = recipe::resolve(recipe_request(*parsed));
    Json document = {{"ok", true}, {"hash", resolved.hash}, {"stages", Json::array()}};
    bool all_there = !parsed->flag("files") || report_files(resolved, json ? &document : nullptr);
    if (json) {
      for (const auto& stage : resolved.plan.stages) {
        document["stages"].push_back({{"name", stage.name}, {"samples", stage.samples}});
        if (stage.steps) document["stages"].back()["steps"] = *stage.steps;
      }
      document["ok"] = all_there;
      fmt::print("{}\n", document.dump(2));
    } else if (all_there) {
      fmt::print("{}  {}  plan {}\n", styled("OK", Style::green), resolved.recipe, resolved.hash.substr(0, 12));
      fmt::print("    {}\n", recipe::stages_text(resolved.plan));
    }
    return all_there ? 0 : static_cast<int>(ErrorKind::data);
  } catch (const recipe::RecipeError& error) {
    if (!json) throw;
    fmt::print("{}\n", as_json(error).dump(2));
    return error.exit_code();
  }
}

} // namespace fvlm::cli
