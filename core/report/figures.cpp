#include "report/figures.h"

#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::report {
namespace {

std::optional<double> last_finite(const std::vector<double>* values) {
  if (values)
    for (auto value = values->rbegin(); value != values->rend(); ++value)
      if (std::isfinite(*value)) return *value;
  return std::nullopt;
}

std::optional<double> greatest(const std::vector<double>* values) {
  std::optional<double> out;
  if (values)
    for (double value : *values)
      if (std::isfinite(value)) out = std::max(out.value_or(value), value);
  return out;
}

std::optional<double> mean(const std::vector<double>* values) {
  return values ? mean_from(*values) : std::nullopt;
}

double sum(const std::vector<double>& values) {
  double total = 0;
  for (double value : values)
    if (std::isfinite(value)) total += value;
  return total;
}

// Each line's samples over its rate.
double seconds_of_rates(const StepLines& lines) {
  const auto *used = lines.find("samples_used"), *samples = used ? used : lines.find("samples"),
             *rates = lines.find("samples_per_second");
  double seconds = 0, before = 0;
  for (size_t i = 0; samples && rates && i < lines.steps.size(); ++i) {
    double more = (*samples)[i] - before;
    if (std::isfinite((*samples)[i])) before = (*samples)[i];
    if (more > 0 && (*rates)[i] > 0) seconds += more / (*rates)[i];
  }
  return seconds;
}

std::vector<TimePart> parts_of(const Stage& stage, double& seconds) {
  const StepLines& lines = stage.lines;
  const std::vector<std::string>& order = time_part_names();
  std::vector<std::string> names;
  for (const auto& column : lines.names("time.")) names.push_back(column.substr(5));
  auto rank = [&](const std::string& name) { return std::ranges::find(order, name) - order.begin(); };
  std::ranges::stable_sort(names, [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  std::vector<TimePart> parts;
  double claimed = 0;
  for (const auto& name : names) {
    double part = sum(*lines.find("time." + name));
    if (part <= 0) continue;
    parts.push_back({name, part});
    claimed += part;
  }
  if (!parts.empty() && seconds > claimed * 1.001) parts.push_back({"other", seconds - claimed});
  seconds = std::max(seconds, claimed);
  if (stage.evaluation_seconds > 0) parts.push_back({"evaluation", stage.evaluation_seconds});
  return parts;
}

// The values of a line are means over the steps since the previous line. The first line of a file covers `log_every`
// steps, because a file that replaces a lost one starts in the middle of a stage.
StepRange steps_of_line(const Stage& stage, size_t line) {
  const int64_t last = stage.lines.steps[line];
  if (line > 0 && stage.lines.steps[line - 1] < last) return {stage.lines.steps[line - 1] + 1, last};
  const int64_t every = stage.log_every.value_or(0);
  return {every > 0 && last > 0 ? (last - 1) / every * every + 1 : 1, last};
}

} // namespace

const std::vector<std::string>& time_part_names() {
  static const std::vector<std::string> names = {
      "data",     "wait",  "rollouts", "vision",  "coarse",    "fine",    "decoder",    "head",      "reference",
      "backward", "graph", "device",   "threads", "optimizer", "metrics", "checkpoint", "evaluation"};
  return names;
}

std::string StepRange::text() const {
  return first == last ? fmt::format("step {}", grouped(first))
                       : fmt::format("steps {}-{}", grouped(first), grouped(last));
}

FirstLossLabel::FirstLossLabel(const std::vector<StageFigures>& figures) {
  std::optional<StepRange> common;
  for (const StageFigures& of : figures) {
    if (!of.first_loss) continue;
    if (common && !(*common == of.first_loss_steps)) return;
    common = of.first_loss_steps;
  }
  if (!common) return;
  in_header_ = true;
  header = "loss, " + common->text();
}

std::string FirstLossLabel::beside(const StageFigures& figures) const {
  return in_header_ || !figures.first_loss ? "" : figures.first_loss_steps.text();
}

std::optional<double> mean_from(const std::vector<double>& values, size_t begin) {
  double total = 0, count = 0;
  for (size_t i = begin; i < values.size(); ++i)
    if (std::isfinite(values[i])) total += values[i], ++count;
  if (count == 0) return std::nullopt;
  return total / count;
}

double StageFigures::seconds_of_parts() const {
  double seconds = 0;
  for (const TimePart& part : parts) seconds += part.seconds;
  return seconds;
}

StageFigures figures_of(const Stage& stage) {
  StageFigures out;
  const StepLines& lines = stage.lines;
  out.begun = !lines.steps.empty();
  out.samples = last_finite(lines.find("samples"));
  out.text_tokens = last_finite(lines.find("text_tokens"));
  out.decoder_tokens = last_finite(lines.find("decoder_tokens"));
  out.frames = last_finite(lines.find("frames"));
  if (out.begun) out.step = lines.steps.back();
  const auto samples = out.samples;
  if (stage.counts) out.samples = static_cast<double>(stage.counts->used);
  out.done = stage.ended || (stage.samples && samples && *samples >= static_cast<double>(*stage.samples)) ||
             (stage.steps && out.begun && out.step >= *stage.steps);
  out.seconds = seconds_of_rates(lines);
  out.parts = parts_of(stage, out.seconds);
  if (const auto* loss = lines.find("loss")) {
    for (size_t line = 0; line < loss->size() && !out.first_loss; ++line)
      if (std::isfinite((*loss)[line])) {
        out.first_loss = (*loss)[line];
        out.first_loss_steps = steps_of_line(stage, line);
      }
    const size_t last = loss->size() - (loss->size() + 19) / 20;
    out.last_loss = mean_from(*loss, last);
    if (out.last_loss) out.last_loss_steps = {steps_of_line(stage, last).first, lines.steps.back()};
  }
  if (out.seconds > 0 && out.samples) out.samples_per_second = *out.samples / out.seconds;
  out.data_wait = mean(lines.find("data_wait_share"));
  out.padding = mean(lines.find("padding_share"));
  out.mfu = mean(lines.find("mfu"));
  out.memory_bytes = greatest(lines.find("memory_bytes"));
  out.device_memory_bytes = greatest(lines.find("device_memory_bytes"));
  out.skipped_steps = last_finite(lines.find("skipped_steps"));
  return out;
}

void advance(std::vector<StageFigures>& figures, const RecordedRun& run, const StageProgress& progress) {
  for (size_t s = 0; s < run.stages.size(); ++s) {
    StageFigures& of = figures[s];
    if (run.stages[s].name != progress.stage || progress.step <= of.step) continue;
    of.begun = true;
    of.step = progress.step;
    of.samples = static_cast<double>(progress.samples);
    of.text_tokens = static_cast<double>(progress.text_tokens);
  }
}

std::vector<EvaluationLine> last_evaluations(const RecordedRun& run) {
  std::vector<EvaluationLine> all;
  for (const auto& line : run.evaluations) {
    auto same = std::ranges::find_if(all, [&](const EvaluationLine& other) {
      return other.stage == line.stage && other.set == line.set && other.mode == line.mode;
    });
    if (same == all.end())
      all.push_back(line);
    else
      *same = line;
  }
  return all;
}

} // namespace fvlm::report
