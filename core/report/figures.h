// Figures of a stage, computed from its lines.
#pragma once
#include "report/recorded_run.h"

#include <optional>
#include <string>
#include <vector>

namespace fvlm::report {

struct TimePart {
  std::string name; // "decoder"; "other": what no part has claimed
  double seconds = 0;
};

struct StageFigures {
  bool begun = false, done = false;
  int64_t step = 0;                              // the last one that a line tells of
  std::optional<double> samples, tokens, frames; // that were learnt from
  double seconds = 0;                            // of its steps
  std::optional<double> first_loss, last_loss;   // of its first line; mean over its last twentieth of lines
  std::optional<double> samples_per_second;      // samples / seconds
  std::optional<double> data_wait, padding, memory_bytes, device_memory_bytes, mfu, skipped_steps;
  std::vector<TimePart> parts; // in the order of a step, then its evaluations; none without time
  double seconds_of_parts() const;
};

StageFigures figures_of(const Stage& stage);

// The mean of `values` from `begin` on, without those that are not finite.
std::optional<double> mean_from(const std::vector<double>& values, size_t begin = 0);

// Means over up to `reach` neighbours on each side, the nearer the heavier; fewer at the beginning, where curves are
// steep. What is not finite has no weight.
std::vector<double> smoothed(const std::vector<double>& values, size_t reach);

// What an evaluation set is judged by: its last line of each stage and mode, in the order of the stages.
std::vector<EvaluationLine> last_evaluations(const RecordedRun& run);

} // namespace fvlm::report
