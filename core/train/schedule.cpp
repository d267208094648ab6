#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fvlm::train {
namespace {

// From 1 to 0 along half a cosine.
double falling(double share) {
  return (1 + std::cos(std::numbers::pi * share)) / 2;
}

double between(double base, double end, double weight_of_base) {
  return end + (base - end) * weight_of_base;
}

struct Shape {
  double base, share; // of what follows the warm-up

  double operator()(const plan::Constant&) const { return base; }
  double operator()(const plan::Cosine& cosine) const { return between(base, base * cosine.to_share, falling(share)); }
  double operator()(const plan::Linear& linear) const { return between(base, base * linear.to_share, 1 - share); }
  double operator()(const plan::Converging& converging) const { return between(base, converging.to, falling(share)); }
  double operator()(const plan::Curve& curve) const { return base * curve.at(share); }
};

} // namespace

double rate(const plan::Schedule& schedule, double base, const Stretch& step) {
  const double warm = plan::warmup(schedule);
  if (step.before < warm) return base * std::min(1.0, step.after / warm);
  return std::visit(Shape{base, warm < 1 ? std::clamp((step.before - warm) / (1 - warm), 0.0, 1.0) : 1}, schedule);
}

} // namespace fvlm::train
