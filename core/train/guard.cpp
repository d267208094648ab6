#include "train/guard.h"

#include <algorithm>
#include <cmath>

namespace fvlm::train {
namespace {

constexpr int64_t losses_before_spikes = 20; // the first losses of a stage fall from high up
constexpr double share_of_newest = 0.05;     // in the running mean
constexpr double least_mean = 0.1;           // smaller ones count as this: a hard sample is many times as much

constexpr int64_t steps_before_doubling = 2000;
constexpr double min_scale = 1, max_scale = 16777216;

} // namespace

Guard::Verdict Guard::check(double loss, double gradient_norm) {
  if (!std::isfinite(loss) || !std::isfinite(gradient_norm)) {
    ++state_.skipped;
    return ++state_.in_a_row >= limits_.nonfinite_limit ? Verdict::too_many : Verdict::skip;
  }
  state_.in_a_row = 0;
  mean_before_ = state_.mean_loss;
  const bool spike = limits_.spike_factor > 0 && state_.losses >= losses_before_spikes &&
                     loss > limits_.spike_factor * std::max(mean_before_, least_mean);
  ++state_.losses;
  state_.mean_loss += (loss - state_.mean_loss) * std::max(share_of_newest, 1.0 / static_cast<double>(state_.losses));
  return spike ? Verdict::spike : Verdict::fine;
}

void Guard::reset() {
  state_.in_a_row = 0;
  state_.losses = 0;
  state_.mean_loss = 0;
}

bool Scaler::reduce_on_overflow(double loss, double gradient_norm) {
  if (!on_ || !std::isfinite(loss) || std::isfinite(gradient_norm) || state_.scale <= min_scale) return false;
  state_.scale = std::max(min_scale, state_.scale / 2);
  state_.good_steps = 0;
  ++state_.overflows;
  return true;
}

std::map<std::string, double> Scaler::figures() const {
  if (!on_) return {};
  return {{"loss_scale", state_.scale}, {"overflowed_steps", static_cast<double>(state_.overflows)}};
}

void Scaler::step_done() {
  if (!on_ || ++state_.good_steps < steps_before_doubling) return;
  state_.scale = std::min(max_scale, state_.scale * 2);
  state_.good_steps = 0;
}

} // namespace fvlm::train
