// RecordedRun: what the folder of a run tells, as far as it got. Unknown keys, files and kinds of lines are passed
// over; what is damaged or missing is noted.
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
  std::optional<SampleCounts> counts; // what became of its samples, as the last line says
};

struct EvaluationLine {
  std::string stage, set, mode, measure;
  int64_t step = 0;
  std::vector<std::pair<std::string, double>> values;
  std::optional<double> find(std::string_view name) const; // none where it is not there or not finite
};

struct Event {
  std::string stage, what, text;
  int64_t step = 0;
};

struct PlanValue {
  std::string path;          // "stages.align.batch.samples"
  std::string value;         // as a reader wants it
  std::vector<double> curve; // where the value is many numbers
  std::string source;        // "recipe.lua:12"; empty: nobody wrote it
};

struct ParameterGroup {
  std::string name;
  int64_t tensors = 0, parameters = 0;
  bool trained = false;
  std::optional<double> lr, weight_decay;
};

struct Option {
  std::string text;
  std::optional<double> loss;
  bool right = false;
};

struct ShownSample {
  std::string set, stage, source, question, expected, answer;
  int64_t step = 0;
  std::vector<Option> options;
  std::vector<std::filesystem::path> frames;
  int64_t rows = 0, columns = 0;              // of `attention`
  std::vector<std::vector<double>> attention; // a frame each; none, or as many as frames
};

struct RecordedRun {
  std::filesystem::path folder;
  std::string name, hash, recipe, precision, seed;
  std::vector<PlanValue> plan;
  std::vector<Stage> stages; // as planned, then those that only lines name
  std::vector<EvaluationLine> evaluations;
  std::vector<Event> events;
  std::map<std::string, std::vector<ParameterGroup>> parameters; // by stage
  std::vector<ShownSample> samples;
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
void read_samples(RecordedRun& run); // recorded_samples.cpp

} // namespace fvlm::report
