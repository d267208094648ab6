// metrics.jsonl, line by line.
#include "base/file.h"
#include "report/loose_json.h"
#include "report/recorded_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <sys/stat.h>

namespace fvlm::report {
namespace {

constexpr double absent = std::numeric_limits<double>::quiet_NaN();

Stage& stage_of(RecordedRun& run, const std::string& name) {
  for (auto& stage : run.stages)
    if (stage.name == name) return stage;
  run.stages.push_back({});
  run.stages.back().name = name;
  return run.stages.back();
}

// Names of earlier versions.
const std::string& present_name(const std::string& name) {
  static const std::map<std::string, std::string, std::less<>> renamed = {
      {"tokens", "text_tokens"}, {"tokens_per_second", "text_tokens_per_second"}};
  const auto found = renamed.find(name);
  return found == renamed.end() ? name : found->second;
}

void add_step(StepLines& lines, int64_t step, const Json& line) {
  size_t row = lines.steps.size();
  lines.steps.push_back(step);
  for (const auto& [key, value] : line.items()) {
    if (key == "step" || !(value.is_number() || value.is_null())) continue;
    const std::string& name = present_name(key);
    auto found = lines.columns.find(name);
    if (found == lines.columns.end()) found = lines.columns.emplace(name, std::vector<double>()).first;
    found->second.resize(row, absent);
    found->second.push_back(value.is_number() ? value.get<double>() : absent);
  }
}

void note_counts(Stage& stage, const Json& line) {
  SampleCounts counts;
  bool any = false;
  for (const auto& [name, value] : line.items())
    if (value.is_number()) any = take_number(counts, name, value.get<double>()) || any;
  if (any) stage.counts = counts;
}

void add_line(RecordedRun& run, const Json& line) {
  std::string kind = text(line, "kind"), stage = text(line, "stage");
  int64_t step = count(line, "step").value_or(0);
  if (stage.empty()) return;
  if (kind == "step") {
    Stage& recorded = stage_of(run, stage);
    add_step(recorded.lines, step, line);
    note_counts(recorded, line);
    recorded.ended = false; // it was extended
  } else if (kind == "event") {
    run.events.push_back({stage, text(line, "what"), text(line, "text"), step});
    if (run.events.back().what == "stage_end") {
      stage_of(run, stage).ended = true;
      note_counts(stage_of(run, stage), line);
    }
  } else if (kind == "evaluation") {
    EvaluationLine evaluation{stage, text(line, "set"), text(line, "mode"), text(line, "measure"), step, {}};
    for (const auto& [name, value] : line.items())
      if (name != "step" && value.is_number()) evaluation.values.emplace_back(name, value.get<double>());
    stage_of(run, stage).evaluation_seconds += std::max(0.0, evaluation.find("seconds").value_or(0));
    run.evaluations.push_back(std::move(evaluation));
  }
}

std::string utc(const std::filesystem::path& file) {
  struct stat found {};
  std::tm parts{};
  if (stat(file.c_str(), &found) != 0 || !gmtime_r(&found.st_mtime, &parts)) return "";
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min);
}

} // namespace

const std::vector<double>* StepLines::find(std::string_view name) const {
  auto found = columns.find(name);
  return found == columns.end() ? nullptr : &found->second;
}

std::vector<std::string> StepLines::names(std::string_view prefix) const {
  std::vector<std::string> all;
  for (const auto& [name, column] : columns)
    if (name.starts_with(prefix)) all.push_back(name);
  return all;
}

std::optional<double> EvaluationLine::find(std::string_view name) const {
  for (const auto& [key, value] : values)
    if (key == name && std::isfinite(value)) return value;
  return std::nullopt;
}

void read_metrics(RecordedRun& run) {
  auto path = run.folder / "metrics.jsonl";
  run.last_line_at = utc(path);
  std::string content = read_file(path, uint64_t{4} << 30);
  std::string_view rest = content;
  int64_t number = 0, unreadable = 0, first_unreadable = 0;
  while (!rest.empty()) {
    ++number;
    size_t end = rest.find('\n');
    if (end == rest.npos) {
      run.notes.push_back("the last line of metrics.jsonl is not whole: the run is writing it, or was stopped there");
      break;
    }
    Json line = Json::parse(rest.substr(0, end), nullptr, false);
    rest.remove_prefix(end + 1);
    if (line.is_object()) {
      add_line(run, line);
    } else if (++unreadable == 1) {
      first_unreadable = number;
    }
  }
  if (unreadable > 0)
    run.notes.push_back(fmt::format("{} of {} lines of metrics.jsonl could not be read; the first is line {}",
                                    unreadable, number, first_unreadable));
  for (auto& stage : run.stages)
    for (auto& [name, column] : stage.lines.columns) column.resize(stage.lines.steps.size(), absent);
}

} // namespace fvlm::report
