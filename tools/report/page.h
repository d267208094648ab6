// The HTML report: one self-contained file, made from the folder of a run alone.
#pragma once
#include "report/figures.h"
#include "report/recorded_run.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fvlm::report {

struct Report {
  std::filesystem::path file;
  uint64_t bytes = 0;
  RecordedRun run;
  std::vector<StageFigures> figures; // of run.stages
  std::vector<std::string> notes;    // what is missing, could not be read or was left out; the page says it too
};

// Writes it atomically to RUN/report.html or to `file`, also for a run that is under way or was killed. Throws
// Error(data) when the folder is not that of a run.
Report write_report(const std::filesystem::path& run, const std::filesystem::path& file);
Report write_report(const std::filesystem::path& run);

// The same as HTML that follows the run, for live_page.h to serve.
std::string live_report(const std::filesystem::path& run);

} // namespace fvlm::report
