// Wall-clock and CPU times of the steps of one measurement.
#pragma once
#include <nlohmann/json.hpp>

#include <vector>

namespace fvlm::bench {

// Milliseconds of wall-clock time, and of CPU time over all threads of the process.
struct StepTime {
  double wall, cpu;
};
// Measures from its construction to stop().
class Stopwatch {
 public:
  Stopwatch();
  StepTime stop() const;

 private:
  StepTime started_;
};

class Times {
 public:
  void add(StepTime turn) { times_.push_back(turn); }
  size_t count() const { return times_.size(); }
  // All need at least one step.
  double median() const;
  double min() const;
  double total() const;
  double median_cpu() const; // the most reliable one for a single thread on a busy machine
  // {"median_ms", "minimal_ms", "median_cpu_ms", "samples_per_second"}, the last by the median.
  nlohmann::ordered_json json(int64_t samples) const;

 private:
  std::vector<double> sorted(double StepTime::*which) const;
  std::vector<StepTime> times_;
};

} // namespace fvlm::bench
