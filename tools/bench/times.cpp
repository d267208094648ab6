#include "bench/times.h"

#include <algorithm>
#include <ctime>

namespace fvlm::bench {
namespace {

double now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

StepTime now() {
  return {now(CLOCK_MONOTONIC), now(CLOCK_PROCESS_CPUTIME_ID)};
}

double middle_of(const std::vector<double>& sorted) {
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

} // namespace

Stopwatch::Stopwatch() : started_(now()) {}

StepTime Stopwatch::stop() const {
  const StepTime stopped = now();
  return {stopped.wall - started_.wall, stopped.cpu - started_.cpu};
}

std::vector<double> Times::sorted(double StepTime::*which) const {
  std::vector<double> all;
  for (const StepTime& turn : times_) all.push_back(turn.*which);
  std::ranges::sort(all);
  return all;
}

double Times::median() const {
  return middle_of(sorted(&StepTime::wall));
}

double Times::min() const {
  return sorted(&StepTime::wall).front();
}

double Times::total() const {
  double total = 0;
  for (const StepTime& turn : times_) total += turn.wall;
  return total;
}

double Times::median_cpu() const {
  return middle_of(sorted(&StepTime::cpu));
}

nlohmann::ordered_json Times::json(int64_t samples) const {
  return {{"median_ms", median()},
          {"least_ms", min()},
          {"median_cpu_ms", median_cpu()},
          {"samples_per_second", static_cast<double>(samples) / median() * 1e3}};
}

} // namespace fvlm::bench
