#include "report/metrics_log.h"

#include "report/event_record.h"
#include "report/log_position.h"
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

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Shortest text that reads back as the same double; JSON has only finite numbers.
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
  Files(const LogPosition& lines, const LogPosition& records)
      : metrics(lines.file, lines.size), events(records.file, records.size) {}
  RecordFile metrics, events;
};

MetricsLog::MetricsLog(const fs::path& run, Position from) {
  const LogPosition lines = lines_to_continue(run / "metrics.jsonl", from.metrics);
  const LogPosition records = events_to_continue(run, from.events);
  files_ = std::make_unique<Files>(lines, records);
  fsync_folder(run);
  if (records.size == 0) files_->events.append(version_record(wall_time()));
}

MetricsLog::MetricsLog() = default;
MetricsLog::~MetricsLog() = default;

void MetricsLog::write(const Record& record) {
  if (!files_) return;
  files_->metrics.append(json_line(record));
  if (!record.values.empty()) files_->events.append(scalars_record(wall_time(), record.step, tagged(record)));
}

Position MetricsLog::flush() {
  if (!files_) return {};
  return {files_->metrics.flush(), files_->events.flush()};
}

} // namespace fvlm::report
