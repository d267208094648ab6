#include "objective/dpo/preference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

namespace fvlm::objective {
namespace {

at::Tensor pair_of(const at::Tensor& chosen, const at::Tensor& rejected) {
  return at::stack({chosen, rejected}, 1);
}

// -log sigmoid(x), and its derivative where a share of the preferences is taken to be wrong.
struct Logistic {
  at::Tensor loss, slope;
  Logistic(const at::Tensor& x, double smoothing)
      : loss(at::log_sigmoid(x).neg() * (1 - smoothing)), slope(at::sigmoid(x.neg()) * (smoothing - 1)) {
    if (smoothing == 0) return;
    loss = loss - at::log_sigmoid(x.neg()) * smoothing;
    slope = slope + at::sigmoid(x) * smoothing;
  }
};

// Of losses of scale * (chosen - rejected): from the derivative by that product.
at::Tensor of_difference(const at::Tensor& slope, double scale) {
  return pair_of(slope * scale, slope * -scale);
}

Preference kto(double beta, const at::Tensor& ratios, const at::Tensor& used) {
  // The divergence from the reference is estimated by the pack's answers of the other kind, and passes no gradient.
  const auto estimate = [&](int64_t side) { return ((ratios.select(1, side) * used).sum() / used.sum()).clamp_min(0); };
  const at::Tensor of_chosen = estimate(0), of_rejected = estimate(1);
  const at::Tensor chosen = at::sigmoid((ratios.select(1, 0) - of_rejected) * beta),
                   rejected = at::sigmoid((of_chosen - ratios.select(1, 1)) * beta);
  Preference made;
  made.losses = (1 - chosen + 1 - rejected) * 0.5;
  made.gradient = pair_of(chosen * (1 - chosen) * (-0.5 * beta), rejected * (1 - rejected) * (0.5 * beta));
  made.figures = {((of_chosen + of_rejected) * 0.5).expand_as(made.losses)};
  return made;
}

Preference orpo(double beta, const at::Tensor& policy) {
  // log(1 - exp(p)); a mean log-probability of 0 would be a certain text, which has no finite odds.
  const at::Tensor p = policy.clamp_max(-1e-12), odds = p - at::expm1(p).neg().log();
  const at::Tensor log_odds = odds.select(1, 0) - odds.select(1, 1), chosen = policy.select(1, 0);
  const Logistic ratio(log_odds, 0);
  Preference made;
  made.losses = chosen.neg() + ratio.loss * beta;
  // d odds / d p = 1 / (1 - exp(p))
  made.gradient = of_difference(ratio.slope, beta) / at::expm1(p).neg();
  made.gradient.select(1, 0).sub_(1);
  made.figures = {chosen.neg(), log_odds};
  return made;
}

} // namespace

Preference preference(const Dpo& term, const at::Tensor& policy, const at::Tensor& reference, const at::Tensor& used) {
  const double beta = term.beta;
  const at::Tensor ratios = reference.defined() ? policy - reference : policy,
                   difference = ratios.select(1, 0) - ratios.select(1, 1);
  Preference made;
  switch (term.kind()) {
  case Dpo::Loss::sigmoid: {
    const Logistic logistic(difference * beta, term.label_smoothing.value_or(0));
    made.losses = logistic.loss;
    made.gradient = of_difference(logistic.slope, beta);
    break;
  }
  case Dpo::Loss::ipo: {
    const at::Tensor distance = difference - 1 / (2 * beta);
    made.losses = distance * distance;
    made.gradient = of_difference(distance, 2);
    break;
  }
  case Dpo::Loss::hinge:
    made.losses = at::relu(1 - difference * beta);
    made.gradient = of_difference(made.losses.gt(0).to(at::kDouble).neg(), beta);
    break;
  case Dpo::Loss::kto:
    made = kto(beta, ratios, used);
    break;
  case Dpo::Loss::simpo: {
    const Logistic logistic(difference * beta - term.gamma.value_or(0.5), term.label_smoothing.value_or(0));
    made.losses = logistic.loss;
    made.gradient = of_difference(logistic.slope, beta);
    break;
  }
  case Dpo::Loss::orpo:
    made = orpo(beta, policy);
    break;
  }
  made.rewards = ratios * beta;
  return made;
}

} // namespace fvlm::objective
