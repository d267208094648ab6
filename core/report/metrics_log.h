// What a run measures, kept twice in its folder: metrics.jsonl, one JSON object a line, for programs and the report;
// and events.out.tfevents.*, for TensorBoard.
//
// A line of metrics.jsonl: {"kind": "step", "stage": "align", "step": 10, <words>, <values>}. A value is the shortest
// decimal number that reads back as the same double, or null where it is not finite. Its tag in TensorBoard, at the
// stage's step: "align/loss"; of an evaluation: "instruct/evaluation/SET/MODE/accuracy". A record without values (most
// events) leaves nothing there.
//
// A disk that is full or failing ends no run: see report/record_file.h. A run that is killed before the disk works
// again lacks what waited in memory when it is resumed, and the log of that moment says so.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fvlm::report {

struct Record {
  std::string kind, stage; // "step", "evaluation", "event"
  int64_t step = 0;        // of the stage
  std::vector<std::pair<std::string, std::string>> words;
  std::vector<std::pair<std::string, double>> values; // no name twice, none of those above
};

// How far both files had got, in bytes: what a checkpoint remembers.
struct Position {
  uint64_t metrics = 0, events = 0;
  bool operator==(const Position&) const = default;
};

// One thread at a time.
class MetricsLog {
 public:
  // Continues in the folder of a run at `from`: what a killed run wrote behind it is cut off. From {0, 0} both files
  // begin anew, as does one that is not what it was at `from` (report/log_position.h). Throws Error where a file cannot
  // be opened.
  MetricsLog(const std::filesystem::path& run, Position from);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  void write(const Record& record);
  // Puts both files on disk. The Position counts what got there, whole records alone.
  Position flush();

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

// One line of metrics.jsonl, with its end of line.
std::string json_line(const Record& record);

} // namespace fvlm::report
