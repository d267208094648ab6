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

// The attention maps of a list; none unless every one has the expected number of cells.
std::vector<AttentionMap> maps_of(const Json& all, int64_t cells) {
  std::vector<AttentionMap> maps;
  for (const auto& entry : all) {
    AttentionMap& map = maps.emplace_back();
    if (entry.is_array())
      for (const auto& cell : entry) map.push_back(cell.is_number() ? cell.get<double>() : 0);
    if (static_cast<int64_t>(map.size()) != cells) return {};
    for (double& number : map)
      if (!(std::isfinite(number) && number > 0)) number = 0;
  }
  return maps;
}

void read_attention(const Json& json, ShownSample& sample) {
  const Json& grid = list(json, "grid");
  if (grid.size() != 2 || !grid[0].is_number_integer() || !grid[1].is_number_integer()) return;
  sample.rows = std::clamp<int64_t>(grid[0].get<int64_t>(), 0, 256);
  sample.columns = std::clamp<int64_t>(grid[1].get<int64_t>(), 0, 256);
  const int64_t cells = sample.rows * sample.columns;
  if (cells == 0) return;
  sample.attention = maps_of(list(json, "attention"), cells);
  if (sample.attention.size() != sample.frames.size()) sample.attention.clear();
  for (const auto& frame : list(json, "query_attention"))
    sample.query_attention.push_back(maps_of(frame.is_array() ? frame : Json::array(), cells));
  if (sample.query_attention.size() != sample.frames.size()) sample.query_attention.clear();
}

// The grids of tiles of all images; none unless they make up the frames.
std::vector<TileGrid> tiles_of(const Json& json, size_t frames) {
  std::vector<TileGrid> tiles;
  int64_t all = 0;
  for (const auto& entry : list(json, "tiles")) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number_unsigned() || !entry[1].is_number_unsigned())
      return {};
    tiles.push_back({std::min<int64_t>(entry[0].get<int64_t>(), 64), std::min<int64_t>(entry[1].get<int64_t>(), 64)});
    all += tiles.back().frames();
  }
  if (all != static_cast<int64_t>(frames)) tiles.clear();
  return tiles;
}

ShownSample sample_of(const Json& json, const fs::path& folder) {
  ShownSample sample;
  sample.set = text(json, "set");
  sample.stage = text(json, "stage");
  sample.key = text(json, "key");
  sample.source = text(json, "source");
  sample.question = text(json, "question");
  sample.expected = text(json, "expected");
  sample.answer = text(json, "answer");
  sample.step = count(json, "step").value_or(0);
  sample.read_as_bytes = flag(json, "read_as_bytes");
  for (const auto& entry : list(json, "answers"))
    sample.answers.push_back({text(entry, "mode"), text(entry, "text"), flag(entry, "right")});
  for (const auto& entry : list(json, "options"))
    sample.options.push_back({text(entry, "text"), number(entry, "loss"), flag(entry, "right")});
  for (const auto& frame : list(json, "frames")) {
    fs::path name = frame.is_string() ? frame.get<std::string>() : "";
    if (name.empty() || name != name.filename())
      throw Error(ErrorKind::data, "a frame does not name a file in the same folder");
    sample.frames.push_back(folder / name);
  }
  sample.tiles = tiles_of(json, sample.frames.size());
  read_attention(json, sample);
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
