#include "bench/stream_steps.h"

#include "device/runtime.h"

#include <utility>

namespace fvlm::bench {

StreamPart& StreamPart::operator+=(const StreamPart& more) {
  steps += more.steps;
  samples += more.samples;
  frames += more.frames;
  tokens += more.tokens;
  rows += more.rows;
  computed_rows += more.computed_rows;
  new_classes += more.new_classes;
  captured += more.captured;
  seconds += more.seconds;
  for (const auto& [name, spent] : more.parts) parts[name] += spent;
  return *this;
}

StreamSteps::StreamSteps(const plan::Plan& plan, Training& training)
    : plan_(plan), training_(training), under_way_at_most_(plan.speed.overlap_copies && device::runtime() ? 1 : 0) {
  pass_over();
}

void StreamSteps::pass_over() {
  if (device::Runtime* gpu = device::runtime()) reached_ = gpu->record_event();
  then_ = Clock::now();
  times_.skip_elapsed();
}

void StreamSteps::take(const LoadedPack& loaded) {
  times_.add_elapsed(PartTimes::waiting);
  train::GradientComputer& gradient_computer = training_.gradient_computer();
  const auto counts = train::counts_of(plan_.stages.front(), *loaded.of_step);
  gradient_computer.begin_step();
  gradient_computer.forward_backward(loaded.pack, counts, 1, times_);
  training_.optimize();
  times_.add_elapsed("optimizer");
  StreamPart step;
  step.steps = 1;
  step.samples = counts.samples;
  step.frames = counts.frames;
  step.tokens = counts.text_tokens;
  step.rows = gradient_computer.used_rows();
  step.computed_rows = gradient_computer.all_rows();
  step.parts = times_.take();
  const bool records = plan_.speed.graphs && device::runtime();
  if (records && !step.parts.contains("graph")) ++(gradient_computer.kernels() > 0 ? step.captured : step.new_classes);
  all.push_back(std::move(step));
  under_way_.push_back(training_.numbers());
  while (under_way_.size() > under_way_at_most_) read();
  times_.add_elapsed("device");
}

void StreamSteps::read_all() {
  while (!under_way_.empty()) read();
}

void StreamSteps::read() {
  const train::AsyncReadback numbers = std::move(under_way_.front());
  under_way_.pop_front();
  last_loss = training_.loss(numbers);
  if (read_ == 0) first_loss = last_loss;
  const auto now = Clock::now();
  // Uses the device's clock, because by the host's a step's time would count for the next one.
  all[read_++].seconds =
      reached_ ? numbers.event()->seconds_since(*reached_) : std::chrono::duration<double>(now - then_).count();
  reached_ = numbers.event();
  then_ = now;
}

} // namespace fvlm::bench
