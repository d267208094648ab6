#include "report/metrics_log.h"

#include "base/error.h"
#include "report/event_record.h"
#include "report/record_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>

namespace fvlm::report {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view events_begin = "events.out.tfevents.", events_end = ".fvlm-engine";

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

fs::path events_file(const fs::path& run) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(run)) {
    std::string name = entry.path().filename().string();
    if (name.starts_with(events_begin) && name.ends_with(events_end)) found.push_back(entry.path());
  }
  if (found.size() > 1) {
    std::sort(found.begin(), found.end());
    throw Error(ErrorKind::data, fmt::format("{} and {} both claim to be the run's events",
                                             found[0].filename().string(), found[1].filename().string()))
        .at(run.string())
        .advise("a run has one such file: move the other out of its folder");
  }
  if (found.size() == 1) return found[0];
  return run / fmt::format("{}{}{}", events_begin, static_cast<int64_t>(wall_time()), events_end);
}

// Shortest text that reads back as the same double; JSON knows no other than finite ones.
void put_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::array<char, 32> text{};
  auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  out.append(text.data(), end);
  if (value == 0 && std::signbit(value)) out += ".0"; // "-0" would be read as an integer, which has no such zero
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<std::pair<std::string, double>> tagged(const Record& record) {
  std::string prefix = record.stage + "/";
  if (record.kind != "step") prefix += record.kind + "/";
  for (const auto& [name, word] : record.words)
    if (name == "set" || name == "mode" || name == "what") prefix += word + "/";
  auto all = record.values;
  for (auto& [name, value] : all) name.insert(0, prefix);
  return all;
}

} // namespace

std::string json_line(const Record& record) {
  std::string out =
      fmt::format(R"({{"kind":{},"stage":{},"step":{})", quoted(record.kind), quoted(record.stage), record.step);
  for (const auto& [name, word] : record.words) out += fmt::format(",{}:{}", quoted(name), quoted(word));
  for (const auto& [name, value] : record.values) {
    out += fmt::format(",{}:", quoted(name));
    put_number(out, value);
  }
  return out + "}\n";
}

struct MetricsLog::Files {
  Files(const fs::path& run, Position from)
      : metrics(run / "metrics.jsonl", from.metrics), events(events_file(run), from.events) {}
  RecordFile metrics, events;
};

MetricsLog::MetricsLog(const fs::path& run, Position from) : files_(std::make_unique<Files>(run, from)) {
  if (!files_->metrics.ends_a_line())
    throw Error(ErrorKind::data, fmt::format("byte {} ends no line, and a checkpoint was written there", from.metrics))
        .at((run / "metrics.jsonl").string())
        .advise("this is not the file that the run wrote: put its own back");
  fsync_folder(run);
  if (from.events == 0) files_->events.append(version_record(wall_time()));
}

MetricsLog::~MetricsLog() = default;

void MetricsLog::write(const Record& record) {
  files_->metrics.append(json_line(record));
  if (!record.values.empty()) files_->events.append(scalars_record(wall_time(), record.step, tagged(record)));
}

Position MetricsLog::flush() {
  return {files_->metrics.flush(), files_->events.flush()};
}

} // namespace fvlm::report
