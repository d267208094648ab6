// Training steps on packs that come from a loader: what each of them took, end to end.
#pragma once
#include "bench/training.h"
#include "data/stream/host_pack.h"

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::bench {

// Sums over some of the steps; each step is one pack.
struct StreamPart {
  int64_t steps = 0, samples = 0, frames = 0, tokens = 0; // tokens of text
  int64_t rows = 0, computed_rows = 0;                    // of the decoder: filled, and with padding
  int64_t new_classes = 0, captured = 0; // steps that were the first of their size class, or captured it
  double seconds = 0;
  std::map<std::string, double> parts; // those seconds by part of the step; "wait": for data
  std::optional<double> lost_seconds;  // time of steps of new classes beyond that of replayed steps
  StreamPart& operator+=(const StreamPart& more);
  bool replayed() const { return new_classes + captured == 0; }
  double a_second(int64_t count) const { return static_cast<double>(count) / seconds; }
};

// The steps of a measurement, in order. As in training, the result of a step is read after the next one was launched,
// if readback may overlap.
class StreamSteps {
 public:
  StreamSteps(const plan::Plan& plan, Training& training);

  // Time since the last step is not counted.
  void pass_over();
  // Takes a step on a pack that next() of a loader has just returned, which `wait` counts.
  void take(const LoadedPack& loaded);
  void read_all(); // waits for the device

  std::vector<StreamPart> all;
  double first_loss = 0, last_loss = 0;

 private:
  using Clock = std::chrono::steady_clock;
  void read();

  const plan::Plan& plan_;
  Training& training_;
  PartTimes times_;
  size_t under_way_at_most_, read_ = 0;
  std::deque<train::AsyncReadback> under_way_;
  std::shared_ptr<device::Event> reached_; // of the step that was read last
  Clock::time_point then_;
};

} // namespace fvlm::bench
