// The summary of a run that `train` prints at its end, and `report` beside the file that it writes.
#pragma once
#include "report/figures.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace fvlm::report {

// A table of the stages (steps, samples, tokens, time, speed, losses), with a row of their totals where there are
// several. Then one of the last result of each held-out set in each mode. `figures`: of run.stages.
std::string summary_text(const RecordedRun& run, const std::vector<StageFigures>& figures);

// Accuracy by kind of question, one column a mode; empty where no set has several kinds.
std::string kinds_text(const RecordedRun& run);

// {"stages": [...], "evaluations": [...]}: the same numbers.
nlohmann::ordered_json summary_json(const RecordedRun& run, const std::vector<StageFigures>& figures);

} // namespace fvlm::report
