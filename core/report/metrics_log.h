// Writes the metrics of a run to two files in its folder: metrics.jsonl, with one JSON object per line, for programs
// and the report; and events.out.tfevents.* for TensorBoard.
//
// A line of metrics.jsonl: {"kind": "step", "stage": "align", "step": 10, <words>, <values>}. A value is the shortest
// decimal number that reads back as the same double, or null where it is not finite. Its tag in TensorBoard, at the
// stage's step: "align/loss"; of an evaluation: "instruct/evaluation/SET/MODE/accuracy". A record without values (most
// events) leaves nothing there.
//
// A full or failing disk does not end the run: see report/record_file.h. If the run is killed before the disk works
// again, the records that waited in memory are lost, and a warning at the resume says so.
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

// The size of both files in bytes, which a checkpoint stores.
struct Position {
  uint64_t metrics = 0, events = 0;
  bool operator==(const Position&) const = default;
};

// One thread at a time.
class MetricsLog {
 public:
  // Continues the files of a run at `from` and truncates what a killed run wrote behind it. At {0, 0} both files start
  // over, as does a file that does not match `from` (report/log_position.h). Throws Error when a file cannot be opened.
  MetricsLog(const std::filesystem::path& run, Position from);
  MetricsLog(); // writes nothing: of a rank that is not the first
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  void write(const Record& record);
  // Flushes both files to disk and returns the sizes that are durable, in whole records.
  Position flush();

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

// One line of metrics.jsonl, including the newline.
std::string json_line(const Record& record);

} // namespace fvlm::report
