// Summary figures of a stage, computed from its lines in metrics.jsonl.
#pragma once
#include "report/recorded_run.h"

#include <optional>
#include <string>
#include <vector>

namespace fvlm::report {

struct TimePart {
  std::string name; // such as "decoder"; "other" is the time of no part
  double seconds = 0;
};

// The names of the parts of the time of a run, in the order of a step, then "evaluation".
const std::vector<std::string>& time_part_names();

// The range of steps that a mean is taken over.
struct StepRange {
  int64_t first = 0, last = 0;
  bool operator==(const StepRange&) const = default;
  std::string text() const; // "steps 1-10", "step 1"
};

struct StageFigures {
  bool begun = false, done = false;
  int64_t step = 0;                                                   // the last step that has a line
  std::optional<double> samples, text_tokens, decoder_tokens, frames; // trained on
  double seconds = 0;                                                 // of its steps
  std::optional<double> first_loss, last_loss; // means: of its first line, and over its last twentieth of lines
  StepRange first_loss_steps, last_loss_steps; // the steps that they are means over
  std::optional<double> samples_per_second;    // samples / seconds
  std::optional<double> data_wait, padding, memory_bytes, device_memory_bytes, mfu, skipped_steps;
  std::vector<TimePart> parts; // in the order of a step, then its evaluations; none without time
  double seconds_of_parts() const;
  // Whether the last loss is another mean than the first: of a stage with a single line both are that line's, and a
  // table that had it twice would read as a loss that does not fall.
  bool has_final_loss() const { return last_loss && last_loss_steps != first_loss_steps; }
  static constexpr const char* only_loss = "the same: one line (log_every)"; // what such a table has in its place
};

StageFigures figures_of(const Stage& stage);

// The position of a stage that was stopped between two lines of metrics, so that its last steps have no line.
struct StageProgress {
  std::string stage;
  int64_t step = 0, samples = 0, text_tokens = 0;
};
// Advances the figures of that stage, which must be one of run.stages, to this position.
void advance(std::vector<StageFigures>& figures, const RecordedRun& run, const StageProgress& progress);

// Tables state the steps of the first loss in the header when all stages agree, otherwise beside each value.
struct FirstLossLabel {
  explicit FirstLossLabel(const std::vector<StageFigures>& figures);
  std::string header = "loss at first";                  // "loss, steps 1-10"
  std::string beside(const StageFigures& figures) const; // "steps 1-10", or empty

 private:
  bool in_header_ = false;
};

// The mean of the finite values from `begin` on.
std::optional<double> mean_from(const std::vector<double>& values, size_t begin = 0);

// The last evaluation of each set in each stage and mode, in the order of the stages.
std::vector<EvaluationLine> last_evaluations(const RecordedRun& run);

} // namespace fvlm::report
