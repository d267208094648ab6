// The parts of the page, each as HTML; empty where the run has nothing for it.
#pragma once
#include "report/figures.h"
#include "report/recorded_run.h"

#include <string>
#include <vector>

namespace fvlm::report {

struct Told {
  const RecordedRun& run;
  std::vector<StageFigures> figures;       // of run.stages
  std::vector<EvaluationLine> evaluations; // the last of each stage, set and mode
};

std::string headline_cards(const Told& told);
std::string stage_table(const Told& told);
std::string evaluation_tables(const Told& told);
std::string curves(const Told& told);
std::string time_bars(const Told& told);
std::string event_table(const Told& told);
std::string sample_cards(const Told& told, std::vector<std::string>& notes); // what could not be shown is noted
std::string parameter_table(const Told& told);
std::string plan_tables(const Told& told);

bool is_noteworthy(const Event& event); // of those, a flag stands in the curves

} // namespace fvlm::report
