// How long the turns of one measurement took.
#pragma once
#include <nlohmann/json.hpp>

#include <vector>

namespace fvlm::bench {

// In milliseconds: by the clock, and what all threads of the process spent on it.
struct Turn {
  double wall, cpu;
};
// Of what is between its making and stop().
class Stopwatch {
 public:
  Stopwatch();
  Turn stop() const;

 private:
  Turn started_;
};

class Times {
 public:
  void add(Turn turn) { turns_.push_back(turn); }
  size_t count() const { return turns_.size(); }
  // Of at least one turn.
  double median() const;
  double least() const;
  double median_cpu() const; // on a busy machine with one thread the most honest
  // {"median_ms", "least_ms", "median_cpu_ms", "samples_per_second"}, the last by the median.
  nlohmann::ordered_json json(int64_t samples) const;

 private:
  std::vector<double> sorted(double Turn::*which) const;
  std::vector<Turn> turns_;
};

} // namespace fvlm::bench
