// fvlm-engine check: validates a recipe and reports every mistake, or prints one line about its stages.
#include "base/log.h"
#include "base/path_hint.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/check_files.h"
#include "cli/plugin_options.h"
#include "cli/recipe_options.h"
#include "recipe/control_memory.h"
#include "recipe/files.h"
#include "recipe/print.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace fvlm::cli {
namespace {

using Json = nlohmann::ordered_json;

Json as_json(const recipe::FileReport& report) {
  Json missing = Json::array();
  for (const auto& file : report.missing)
    missing.push_back({{"file", file.file},
                       {"what", file.what},
                       {"path", file.path},
                       {"from", file.source},
                       {"unusable", file.unusable}});
  return {{"missing", missing}, {"shards", report.shards}, {"shard_bytes", report.shard_bytes}};
}

void print_missing(const recipe::FileReport& report) {
  for (const auto& file : report.missing)
    log_error("{}: {}{}{}\n  {}, {}", file.unusable ? "unusable" : "missing", file.file, file.file.empty() ? "" : ": ",
              file.what, file.path, file.source);
  const auto& all = report.missing;
  const auto unusable = std::count_if(all.begin(), all.end(), [](const auto& file) { return file.unusable; });
  const auto missing = std::ssize(all) - unusable;
  if (missing > 1 || (missing == 1 && unusable > 0)) log_error("{} {} missing", missing, missing == 1 ? "is" : "are");
  if (unusable > 1 || (unusable == 1 && missing > 0))
    log_error("{} {} unusable", unusable, unusable == 1 ? "is" : "are");
  const auto relative =
      std::find_if(all.begin(), all.end(), [](const auto& file) { return !with_start_of(file.file).empty(); });
  if (missing > 0 && relative != all.end()) log_info("{}: {}", relative->file, with_start_of(relative->file));
}

} // namespace

int run_check(Arguments arguments) {
  Options options(
      "check RECIPE [--files] [--set PATH=VALUE] [--arg NAME=VALUE] [--json]",
      "Validate a recipe and report every mistake. Exit code 0: it is valid; 3: it has mistakes; with --files,\n"
      "4: files are missing or unusable.",
      "check recipes/quickstart.lua");
  add_recipe_options(options);
  options
      .flag("files",
            "also check that models, checkpoints and data exist, and read the beginning of each; `data check` decodes "
            "every sample")
      .flag("json", "print one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;

  bool json = parsed->flag("json");
  auto resolved = recipe::resolve(recipe_request(*parsed));
  require_positions(resolved);
  recipe::check_controls(resolved);
  bool files = parsed->flag("files");
  auto report = files ? check_files(resolved) : recipe::FileReport{};
  bool good = report.missing.empty();
  if (json) {
    Json document = validation_json(resolved, good);
    if (files) document["files"] = as_json(report);
    fmt::print("{}", dump(document));
  } else if (good) {
    fmt::print("{}  {}  plan {}\n", styled("OK", Style::green), resolved.recipe, resolved.hash.substr(0, 12));
    fmt::print("    {}\n", recipe::stages_text(resolved.plan));
    if (files)
      fmt::print("    all files found: {}, {}; `fvlm-engine data check` decodes every sample\n",
                 counted(static_cast<int64_t>(report.shards), "shard"), human_bytes(report.shard_bytes));
  } else {
    print_missing(report);
  }
  return good ? 0 : static_cast<int>(ErrorKind::data);
}

} // namespace fvlm::cli
