// What the page shows of a run besides its stages and metrics (report/recorded_run.h): the Plan, the parameters, and
// held-out samples with the answers of the model.
#pragma once
#include "data/tile_grid.h"
#include "report/figures.h"
#include "report/recorded_run.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::report {

struct PlanValue {
  std::string path;          // "stages.align.batch.samples"
  std::string value;         // formatted for people
  std::vector<double> curve; // the numbers, where the value is a long list of them
  std::string source;        // where it was written, such as "recipe.lua:12"; empty for a default
};

struct ParameterGroup {
  std::string name;
  int64_t tensors = 0, parameters = 0;
  bool trained = false;
  std::optional<double> lr, others_lr, weight_decay; // others_lr: of what Muon leaves to AdamW, where it has some
};

struct Option {
  std::string text;
  std::optional<double> loss;
  bool right = false;
};

// What the model generated, in one of the connector's modes.
struct ModeAnswer {
  std::string mode, text;
  bool right = false;
};

using AttentionMap = std::vector<double>; // row by row

struct ShownSample {
  std::string set, stage, key, source, question, expected, answer;
  int64_t step = 0;
  bool read_as_bytes = false;      // the question, by the encoder; else the decoder reads it
  std::vector<ModeAnswer> answers; // where the set measures them
  std::vector<Option> options;
  std::vector<std::filesystem::path> frames;
  std::vector<TileGrid> tiles;         // of each image, where images were cut into frames; else empty
  int64_t rows = 0, columns = 0;       // of each attention map
  std::vector<AttentionMap> attention; // one a frame; empty, or as many as frames
  std::vector<std::vector<AttentionMap>> query_attention; // of each query of a frame; empty, or as many as frames
};

// The input of every section of the page.
struct PageInput {
  const RecordedRun& run;
  std::vector<StageFigures> figures;       // of run.stages
  std::vector<EvaluationLine> evaluations; // the last of each stage, set and mode
  std::vector<PlanValue> plan;
  std::map<std::string, std::vector<ParameterGroup>> parameters; // by stage
  std::vector<ShownSample> samples;
};

// Reads the values of plan.json in the order of the file, which read_run() has validated.
std::vector<PlanValue> read_plan_values(const std::filesystem::path& folder);

// What is missing or damaged is skipped and noted.
std::map<std::string, std::vector<ParameterGroup>> read_parameters(const std::filesystem::path& folder,
                                                                   std::vector<std::string>& notes);
std::vector<ShownSample> read_shown_samples(const RecordedRun& run, std::vector<std::string>& notes);

} // namespace fvlm::report
