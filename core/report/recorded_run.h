// RecordedRun: a run read back from its folder, finished or not. Unknown keys and kinds of lines are ignored; what is
// damaged or missing is noted.
#pragma once
#include "data/stream/sample_counts.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::report {

// The lines of kind "step" of one stage, by column; NaN where a line lacks a value or has null.
struct StepLines {
  std::vector<int64_t> steps;
  std::map<std::string, std::vector<double>, std::less<>> columns; // each as long as `steps`

  const std::vector<double>* find(std::string_view name) const;  // null: no line has it
  std::vector<std::string> names(std::string_view prefix) const; // "lr.": "lr.connector", "lr.decoder", ...
};

struct Stage {
  std::string name;
  bool planned = false;                             // the Plan has it
  std::optional<int64_t> steps, samples, log_every; // as planned
  std::string objective;                            // "next_token", "dpo + next_token"
  StepLines lines;
  bool ended = false;                 // an event says so
  double evaluation_seconds = 0;      // of all its evaluations
  std::optional<SampleCounts> counts; // used, skipped and truncated samples, from the last line
};

struct EvaluationLine {
  std::string stage, set, mode, measure;
  int64_t step = 0;
  std::vector<std::pair<std::string, double>> values;
  std::optional<double> find(std::string_view name) const; // empty if it is missing or not finite
};

struct Event {
  std::string stage, what, text;
  int64_t step = 0;
};

struct RecordedRun {
  std::filesystem::path folder;
  std::string name, hash, recipe, precision, seed;
  std::vector<Stage> stages; // those of the plan, then those that only occur in lines
  std::vector<EvaluationLine> evaluations;
  std::vector<Event> events;
  std::vector<std::string> notes; // what is missing or could not be read
  std::string last_line_at;       // "2026-11-22 01:12 UTC": when metrics.jsonl was last written

  const Stage* find(std::string_view stage) const;
};

// Throws Error(data) where plan.json or metrics.jsonl is missing, or plan.json is none.
RecordedRun read_run(const std::filesystem::path& folder);

// The entries of a folder in the order of their names; none where it is not there.
std::vector<std::filesystem::path> sorted_entries(const std::filesystem::path& folder);

// Its parts, in files of their own.
void read_plan(RecordedRun& run);    // recorded_plan.cpp
void read_metrics(RecordedRun& run); // recorded_metrics.cpp

} // namespace fvlm::report
