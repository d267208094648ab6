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

// The parts of a run's time, in the order of a step, then "evaluation".
const std::vector<std::string>& time_part_names();

// Steps that a mean is over.
struct StepRange {
  int64_t first = 0, last = 0;
  bool operator==(const StepRange&) const = default;
  std::string text() const; // "steps 1-10", "step 1"
};

struct StageFigures {
  bool begun = false, done = false;
  int64_t step = 0;                                                   // the last one that a line tells of
  std::optional<double> samples, text_tokens, decoder_tokens, frames; // that were learnt from
  double seconds = 0;                                                 // of its steps
  std::optional<double> first_loss, last_loss; // means: of its first line, and over its last twentieth of lines
  StepRange first_loss_steps;                  // that first_loss is the mean over
  std::optional<double> samples_per_second;    // samples / seconds
  std::optional<double> data_wait, padding, memory_bytes, device_memory_bytes, mfu, skipped_steps;
  std::vector<TimePart> parts; // in the order of a step, then its evaluations; none without time
  double seconds_of_parts() const;
};

StageFigures figures_of(const Stage& stage);

// How tables say which steps a first loss is the mean over: in the header where all stages have the same, otherwise
// beside each.
struct FirstLossLabel {
  explicit FirstLossLabel(const std::vector<StageFigures>& figures);
  std::string header = "loss at first";                  // "loss, steps 1-10"
  std::string beside(const StageFigures& figures) const; // "steps 1-10", or empty

 private:
  bool in_header_ = false;
};

// The mean of `values` from `begin` on, without those that are not finite.
std::optional<double> mean_from(const std::vector<double>& values, size_t begin = 0);

// Means over up to `reach` neighbours on each side, the nearer the heavier; fewer at the beginning, where curves are
// steep. What is not finite has no weight.
std::vector<double> smoothed(const std::vector<double>& values, size_t reach);

// What an evaluation set is judged by: its last line of each stage and mode, in the order of the stages.
std::vector<EvaluationLine> last_evaluations(const RecordedRun& run);

} // namespace fvlm::report
