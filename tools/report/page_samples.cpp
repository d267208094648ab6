// Reads STAGE/show/SET/NNN.json of a run: held-out samples with the answers of the model.
#include "base/error.h"
#include "base/json.h"
#include "report/loose_json.h"
#include "report/page_input.h"

#include <algorithm>

namespace fvlm::report {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t max_sample_bytes = uint64_t{16} << 20;

// Returns the attention map of each frame; none unless every frame has one with the expected number of cells.
std::vector<std::vector<double>> attention_of(const Json& sample, size_t frames, int64_t cells) {
  std::vector<std::vector<double>> all;
  for (const auto& frame : list(sample, "attention")) {
    std::vector<double> numbers;
    if (frame.is_array())
      for (const auto& cell : frame) numbers.push_back(cell.is_number() ? cell.get<double>() : 0);
    if (static_cast<int64_t>(numbers.size()) != cells) return {};
    for (double& number : numbers)
      if (!(std::isfinite(number) && number > 0)) number = 0;
    all.push_back(std::move(numbers));
  }
  if (all.size() != frames) all.clear();
  return all;
}

ShownSample sample_of(const Json& json, const fs::path& folder) {
  ShownSample sample;
  sample.set = text(json, "set");
  sample.stage = text(json, "stage");
  sample.source = text(json, "source");
  sample.question = text(json, "question");
  sample.expected = text(json, "expected");
  sample.answer = text(json, "answer");
  sample.step = count(json, "step").value_or(0);
  for (const auto& entry : list(json, "options")) {
    const Json* right = find(entry, "right");
    sample.options.push_back(
        {text(entry, "text"), number(entry, "loss"), right && right->is_boolean() && right->get<bool>()});
  }
  for (const auto& frame : list(json, "frames")) {
    fs::path name = frame.is_string() ? frame.get<std::string>() : "";
    if (name.empty() || name != name.filename())
      throw Error(ErrorKind::data, "a frame does not name a file in the same folder");
    sample.frames.push_back(folder / name);
  }
  const Json& grid = list(json, "grid");
  if (grid.size() == 2 && grid[0].is_number_integer() && grid[1].is_number_integer()) {
    sample.rows = std::clamp<int64_t>(grid[0].get<int64_t>(), 0, 256);
    sample.columns = std::clamp<int64_t>(grid[1].get<int64_t>(), 0, 256);
    if (sample.rows * sample.columns > 0)
      sample.attention = attention_of(json, sample.frames.size(), sample.rows * sample.columns);
  }
  return sample;
}

} // namespace

std::vector<ShownSample> read_shown_samples(const RecordedRun& run, std::vector<std::string>& notes) {
  std::vector<ShownSample> samples;
  for (const auto& stage : run.stages) {
    if (fs::path(stage.name) != fs::path(stage.name).filename())
      continue; // a name that would lead out of the folder of the run
    for (const auto& set : sorted_entries(run.folder / stage.name / "show"))
      for (const auto& file : sorted_entries(set)) {
        if (file.extension() != ".json") continue;
        try {
          samples.push_back(sample_of(read_json_object(file, max_sample_bytes), set));
          auto& sample = samples.back();
          if (sample.stage.empty()) sample.stage = stage.name;
          if (sample.set.empty()) sample.set = set.filename().string();
        } catch (const Error& error) {
          notes.push_back(error.where().empty() ? file.string() + ": " + error.text() : error.text());
        }
      }
  }
  if (samples.empty())
    notes.push_back(
        "no samples with answers: the evaluation sets of the recipe show none (`show`), or none was reached");
  return samples;
}

} // namespace fvlm::report
