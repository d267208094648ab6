// fvlm-engine plan: the frozen Plan of a recipe, where each value came from, and how two of them differ.
#include "base/terminal.h"
#include "base/text.h"
#include "cli/recipe_options.h"
#include "recipe/print.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fvlm::cli {
namespace {

// 0: the same, 1: they differ, as diff(1) has it.
int print_differences(const recipe::Resolved& left, const recipe::Resolved& right, const std::vector<std::string>& sets,
                      bool json) {
  auto differences = recipe::differences(left.plan, right.plan);
  if (json) {
    auto document = nlohmann::ordered_json::array();
    for (const auto& each : differences)
      document.push_back({{"path", each.path}, {"left", each.left}, {"right", each.right}});
    fmt::print("{}\n", document.dump(2));
  } else if (differences.empty()) {
    fmt::print("the same plan: {}\n", left.hash.substr(0, 12));
  } else {
    std::string changed = sets.empty() ? left.recipe : fmt::format("{} --set {}", left.recipe, join(sets, " --set "));
    fmt::print("{}", recipe::differences_text(differences, changed, right.recipe));
    if (left.hash == right.hash)
      fmt::print("the same numbers: none of this can change a result (plan {})\n", left.hash.substr(0, 12));
  }
  return differences.empty() ? 0 : 1;
}

} // namespace

int run_plan(Arguments arguments) {
  Options options("plan RECIPE [--all] [--diff OTHER] [--set PATH=VALUE] [--arg NAME=VALUE] [--json]",
                  "Prints the frozen plan of a recipe: what its author set and what matters of each stage.\n"
                  "With --diff: what differs; exit code 0 when nothing does, 1 when something does.",
                  "plan recipes/fvlm-135m.lua --set stages.align.samples=1000");
  add_recipe_options(options);
  options.value("diff", "OTHER", "another recipe or plan file; --arg is for both, --set for RECIPE alone")
      .flag("all", "every value, the defaults too, and where each was written")
      .flag("json", "one JSON document on standard output: a plan file");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;

  auto resolved = recipe::resolve(recipe_request(*parsed));
  if (auto other = parsed->value("diff")) {
    auto request = recipe_request(*parsed, *other);
    request.sets.clear();
    if (request.file.extension() == ".json") request.args.clear();
    return print_differences(resolved, recipe::resolve(request), parsed->values("set"), parsed->flag("json"));
  }
  if (parsed->flag("json"))
    fmt::print("{}\n", recipe::plan_document(resolved).dump(2));
  else if (parsed->flag("all"))
    fmt::print("{}", recipe::all_values_text(resolved));
  else
    fmt::print("{}", recipe::summary_text(resolved, terminal_width()));
  return 0;
}

} // namespace fvlm::cli
