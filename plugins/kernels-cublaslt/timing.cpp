// timing.cpp: interleaved timing with CUDA events, in rounds of about 0.2 ms per candidate.
#include "timing.h"

#include "elementwise.h"

#include <algorithm>
#include <limits>

namespace fvlm::plugins {
namespace {

using sdk::check_cuda;

constexpr int rounds = 4;
constexpr double hopeless = 1.25; // times the fastest in the first round: not timed again
constexpr double round_seconds = 2e-4, launch_seconds = 6e-6, never = std::numeric_limits<double>::infinity();

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  double seconds_since(const Event& before) const {
    float milliseconds = 0;
    check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize");
    check_cuda(cudaEventElapsedTime(&milliseconds, before.event_, event_), "cudaEventElapsedTime");
    return milliseconds / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

double seconds_of(cudaStream_t stream, const Candidate& candidate, int times, Event& before, Event& after) {
  // The delay lets the host enqueue all launches before the first starts, so launch latency is not measured.
  delay_stream(stream, (times + 1) * launch_seconds);
  before.record(stream);
  for (int i = 0; i < times; ++i)
    if (!candidate(i)) return never;
  after.record(stream);
  return after.seconds_since(before) / times;
}

} // namespace

std::vector<double> time_interleaved(cudaStream_t stream, const std::vector<Candidate>& candidates) {
  Event before, after;
  std::vector<double> best(candidates.size(), never);
  double limit = never;
  for (int round = 0; round <= rounds; ++round) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (round > 0 && (best[i] == never || best[i] > limit)) continue;
      // The first round loads the code and shows whether the candidate works; the second determines how often to repeat
      // it.
      const int times = round > 1 ? static_cast<int>(std::clamp(round_seconds / best[i], 2.0, 24.0)) : 2;
      const double seconds = seconds_of(stream, candidates[i], times, before, after);
      best[i] = round > 1 ? std::min(best[i], seconds) : seconds;
    }
    if (round == 1) limit = hopeless * *std::min_element(best.begin(), best.end());
  }
  return best;
}

std::size_t pick_fastest(const std::vector<double>& seconds) {
  const double best = *std::min_element(seconds.begin(), seconds.end());
  const auto chosen = std::find_if(seconds.begin(), seconds.end(), [&](double each) { return each <= 1.01 * best; });
  return static_cast<std::size_t>(chosen - seconds.begin());
}

} // namespace fvlm::plugins
