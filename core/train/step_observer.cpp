#include "train/step_observer.h"

#include "model/weights/visual_rows.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::train {
namespace {

// A loss over rewarded answers is near 0 and of either sign: no multiple of its mean says that something is wrong.
plan::Guard limits_of(plan::Guard limits, const plan::Stage& stage) {
  if (stage.rollouts()) limits.spike_factor = 0;
  return limits;
}

} // namespace

StepObserver::StepObserver(RunContext& context, const plan::Stage& stage, RunState& state)
    : context_(context), stage_(stage), state_(state),
      interval_(stage, context.plan.model.decoder_count(), visual_rows(context.plan.model).per_frame, state,
                context.device),
      guard_(limits_of(context.plan.guard, stage), state.guard),
      scaler_(context.plan.precision == plan::Precision::fp16, state.scaler) {}

std::optional<Trouble> StepObserver::observe(const PendingStep& step, const Optimization& optimization,
                                             PartTimes& times) {
  const auto& numbers = step.numbers.read();
  if (step.numbers.event()) times.add_elapsed("device");
  const auto terms = GradientComputer::read_sums(numbers[0], stage_);
  const double norm = numbers[1].item<double>();
  double loss = 0;
  for (size_t term = 0; term < terms.size(); ++term)
    if (terms[term].count > 0) loss += step.counts.weights[term] * terms[term].loss / terms[term].count;

  state_.cursor = step.after;
  ++state_.step;
  state_.samples = step.after.samples;
  state_.text_tokens += step.counts.text_tokens;
  state_.frames += step.counts.frames;
  state_.left_out_rows += step.counts.left_out_rows;
  loss_ = loss;
  max_rate_ = 0;
  for (const Optimization::Rates& rates : step.rates) max_rate_ = std::max(max_rate_, rates.lr);
  if (scaler_.reduce_on_overflow(loss, norm)) {
    context_.event(
        stage_.name, state_.step, "overflow",
        fmt::format("gradients overflow in fp16: the step was not applied, and the loss scale is {} from here on",
                    scaler_.scale()));
    return {};
  }
  const auto verdict = guard_.check(loss, norm);
  if (verdict == Guard::Verdict::skip || verdict == Guard::Verdict::too_many) {
    context_.event(stage_.name, state_.step, "nonfinite",
                   fmt::format("loss {}, gradient norm {}: the step was not applied", loss, norm));
    if (verdict == Guard::Verdict::skip) return {};
    return Trouble{fmt::format("{} steps in a row had a loss or a gradient that is not finite", state_.guard.in_a_row),
                   true};
  }
  std::map<std::string, double> rates = scaler_.figures();
  scaler_.step_done();
  const auto trained = optimization.trained();
  for (size_t group = 0; group < trained.size(); ++group) {
    const Optimization::Rates& of = step.rates[group];
    rates["lr." + trained[group]->name] = optimization.is_all_others(group) ? of.others : of.lr;
  }
  const auto names = objective::term_names(stage_.objective);
  for (size_t term = 0; term < names.size(); ++term) {
    const plan::ObjectiveTerm& of = *stage_.objective[term];
    if (!of.weight.is_constant()) rates["weight." + names[term]] = of.weight.at(step.counts.progress);
    if (const auto* labels = dynamic_cast<const plan::LabelTerm*>(&of);
        labels && labels->first && !labels->first->is_constant())
      rates["first." + names[term]] = static_cast<double>(*of.labels_at(step.counts.progress).first);
  }
  interval_.set_rates(std::move(rates));
  const auto entropy = step.measured_attention ? std::optional(numbers[2].item<double>()) : std::nullopt;
  interval_.add({loss, norm, step.flops, step.counts, terms, step.used_rows, step.all_rows, entropy});
  if (verdict != Guard::Verdict::spike) return {};
  context_.event(stage_.name, state_.step, "spike",
                 fmt::format("loss {:.4g}: {:.1f} x its running mean of {:.4g}", loss, loss / guard_.mean_before(),
                             guard_.mean_before()));
  if (!context_.plan.guard.rollback) return {};
  return Trouble{"the loss made a leap", false};
}

void StepObserver::write_interval(PartTimes& times) {
  if (const auto line = interval_.take(times)) context_.metrics.write(*line);
}

} // namespace fvlm::train
