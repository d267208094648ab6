#include "report/recorded_run.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::report {

namespace fs = std::filesystem;

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) all.push_back(entry.path());
  std::ranges::sort(all);
  return all;
}

const Stage* RecordedRun::find(std::string_view name) const {
  for (const auto& stage : stages)
    if (stage.name == name) return &stage;
  return nullptr;
}

RecordedRun read_run(const fs::path& folder) {
  for (const char* file : {"plan.json", "metrics.jsonl"})
    if (!fs::is_regular_file(folder / file)) {
      Error error(ErrorKind::data, "this is no folder of a run: it has no {}", file);
      for (const auto& entry : sorted_entries(folder))
        if (fs::is_regular_file(entry / "plan.json")) {
          error.advise("did you mean {}?", entry.string());
          break;
        }
      if (error.advice().empty()) error.advise("name a folder that `fvlm-engine train` made, like runs/quickstart");
      throw error.at(folder.string());
    }
  RecordedRun run;
  run.folder = folder;
  read_plan(run);
  read_metrics(run);
  return run;
}

} // namespace fvlm::report
