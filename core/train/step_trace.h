// A trace of some training steps in Chrome's format (chrome://tracing, ui.perfetto.dev): what the host's threads did,
// by the parts of PartTimes, and on a GPU every kernel and copy.
#pragma once
#include "base/part_times.h"
#include "device/runtime.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fvlm::train {

// Steps of a process, counted from 1 over all of its stages.
struct StepRange {
  int64_t first = 1, last = 1;
};

// Of "10-14", or of "5" for the first five. Throws Error(usage).
StepRange step_range(const std::string& text);

class StepTrace {
 public:
  StepTrace(StepRange steps, std::filesystem::path file) : steps_(steps), file_(std::move(file)) {}

  // Whether the next step is one of those to record.
  bool is_due() const { return taken_ + 1 >= steps_.first && taken_ < steps_.last; }
  // Calls `advance` while there are steps to record and it returns true, records what it does and the device meanwhile,
  // and writes the file. Throws Error(device) where a GPU cannot be profiled, Error(output).
  void record(PartTimes& times, const std::function<bool()>& advance);
  // Ends the step that began with the last call, or with record(). Also called where nothing is recorded.
  void end_step(const std::string& stage);
  // Logs where the trace is, or that the run ended before its steps.
  void report() const;

 private:
  using Clock = PartTimes::Clock;
  struct Span {
    std::string name;
    Clock::time_point begin, end;
    std::string arguments; // a JSON object, or empty
  };
  void add(const std::string& part, Clock::time_point begin, Clock::time_point end);
  void write() const;

  const StepRange steps_;
  const std::filesystem::path file_;
  int64_t taken_ = 0;
  bool records_ = false;
  Clock::time_point origin_, step_begin_;
  std::mutex mutex_;
  std::map<std::thread::id, size_t> threads_; // index in host_; the training thread is the first
  std::vector<std::vector<Span>> host_;
  std::vector<std::vector<Span>> device_; // what runs at the same time is in rows of its own
};

} // namespace fvlm::train
