// Curve: a value as a function of a stage's progress.
#pragma once
#include <vector>

namespace fvlm::plan {

// From 0 at the stage's first sample to 1 at its last: evenly spaced points with linear interpolation. One point is a
// constant. A Lua function is sampled at `sample_count` points.
struct Curve {
  static constexpr int sample_count = 257;
  std::vector<double> points = {1.0};
  bool is_constant() const { return points.size() == 1; }
  double at(double progress) const;
};

} // namespace fvlm::plan
