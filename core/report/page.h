// The report: one HTML file that needs nothing besides itself, made of what lies in a run's folder alone.
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

// Writes it, whole or not at all, to RUN/report.html or to `file`. Of a run that still goes on, or was killed, too.
// Throws Error(data) where this is no run's folder.
Report write_report(const std::filesystem::path& run, const std::filesystem::path& file);
Report write_report(const std::filesystem::path& run);

} // namespace fvlm::report
