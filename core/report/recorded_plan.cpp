// Reads the stages and the identity of a run from its plan.json.
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "report/loose_json.h"
#include "report/recorded_run.h"

#include <algorithm>
#include <cctype>

namespace fvlm::report {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t max_plan_bytes = uint64_t{64} << 20;

void read_stages(RecordedRun& run, const Json& plan) {
  for (const auto& planned : list(plan, "stages")) {
    Stage stage;
    stage.name = text(planned, "name");
    if (stage.name.empty() || run.find(stage.name)) continue;
    stage.planned = true;
    stage.steps = count(planned, "steps");
    stage.samples = count(planned, "samples");
    stage.log_every = count(plan, "log_every");
    std::vector<std::string> terms;
    for (const auto& term : list(planned, "objective")) {
      std::string kind = text(term, "kind"); // as a recipe names it: "next_token", "dpo"
      if (kind.empty()) continue;
      constexpr size_t abbreviation = 4; // of letters, such as GRPO
      if (kind.size() <= abbreviation)
        std::ranges::transform(kind, kind.begin(), [](unsigned char c) { return std::toupper(c); });
      std::ranges::replace(kind, '_', ' ');
      terms.push_back(text(term, "on") == "answer" ? kind + " of answers" : kind);
    }
    stage.objective = join(terms, " + ");
    run.stages.push_back(std::move(stage));
  }
}

} // namespace

void read_plan(RecordedRun& run) {
  fs::path file = run.folder / "plan.json";
  Json document = parse_json(read_file(file, max_plan_bytes), file.string());
  const Json* plan = find(document, "plan");
  if (!plan || !plan->is_object())
    throw Error(ErrorKind::data, "not the plan of a run: the object \"plan\" is missing").at(file.string());
  run.name = text(*plan, "name");
  run.hash = text(document, "hash");
  run.recipe = text(document, "recipe");
  run.precision = text(*plan, "precision");
  if (const Json* seed = find(*plan, "seed")) run.seed = seed->dump();
  read_stages(run, *plan);
}

} // namespace fvlm::report
