#include "train/interval.h"

#include "device/probe.h"
#include "train/memory.h"
#include "train/peak_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

namespace fvlm::train {

namespace {

std::unique_ptr<const device::Nvml> nvml_of(c10::Device device) {
  if (!device.is_cuda()) return nullptr;
  const auto gpus = device::probe_cuda().devices; // those that the process sees
  const auto index = static_cast<size_t>(std::max<int>(0, device.index()));
  return index < gpus.size() ? device::Nvml::open(gpus[index].bus) : nullptr;
}

} // namespace

Interval::Interval(const plan::Stage& stage, size_t decoders, int64_t rows_per_frame, RunState& state,
                   c10::Device device)
    : stage_(stage), decoders_(decoders),
      rows_per_frame_(static_cast<int64_t>(decoders) * stage.texts_per_frame() * rows_per_frame), state_(state),
      device_(device), nvml_(nvml_of(device)) {}

// NVML says anew once a second at most, and takes its time.
void Interval::add_device(report::Record& record) {
  record.values.emplace_back("device_memory_bytes", static_cast<double>(held_on(device_)));
  record.values.emplace_back("device_memory_fragmentation", fragmentation_on(device_));
  if (!nvml_) return;
  const auto now = std::chrono::steady_clock::now();
  if (!utilization_ || now - read_at_ > std::chrono::seconds(1)) utilization_ = nvml_->utilization(), read_at_ = now;
  if (utilization_) record.values.emplace_back("gpu_utilization", *utilization_);
}

void Interval::add(const Step& step) {
  auto& sums = state_.interval;
  sums["steps"] += 1;
  sums["loss"] += step.loss;
  sums["gradient_norm"] += step.gradient_norm;
  sums["flops"] += step.flops;
  sums["samples"] += static_cast<double>(step.counts.samples);
  sums["text_tokens"] += static_cast<double>(step.counts.text_tokens);
  sums["frames"] += static_cast<double>(step.counts.frames);
  sums["left_out_rows"] += static_cast<double>(step.counts.left_out_rows);
  sums["used_rows"] += static_cast<double>(step.used_rows);
  sums["all_rows"] += static_cast<double>(step.all_rows);
  if (step.attention_entropy) {
    sums["attention_entropy"] += *step.attention_entropy;
    sums["watched"] += 1;
  }
  const auto names = objective::term_names(stage_.objective, decoders_);
  for (size_t index = 0; index < step.terms.size(); ++index) {
    const GradientComputer::TermSums& term = step.terms[index];
    if (term.count == 0) continue;
    sums["term." + names[index]] += term.loss / term.count;
    const auto names_of_figures = figures(index);
    for (size_t i = 0; i < names_of_figures.size(); ++i) sums[names_of_figures[i]] += term.figures[i] / term.count;
  }
}

std::vector<std::string> Interval::figures(size_t term) const {
  const std::span<const plan::Term> terms = stage_.objective;
  const size_t own = term % terms.size(), decoder = term / terms.size();
  std::vector<std::string> names;
  for (std::string name : terms[own]->figures()) {
    const auto has_it = [&name](const plan::Term& other) {
      const auto figures = other->figures();
      return std::ranges::count(figures, name) > 0;
    };
    if (const auto before = std::ranges::count_if(terms.first(own), has_it); before > 0)
      name += fmt::format("_{}", before + 1);
    names.push_back(decoder == 0 ? name : name + "." + plan::decoder_name(decoder));
  }
  return names;
}

void Interval::add_times(PartTimes& times) {
  for (const auto& [part, spent] : times.take()) state_.interval["time." + part] += spent;
}

std::map<std::string, double> Interval::values() const {
  std::map<std::string, double> values = state_.rates;
  const auto& sums = state_.interval;
  const auto steps = sums.find("steps");
  const bool has_steps = steps != sums.end();
  const auto add_mean = [&](const std::string& name) {
    if (const auto sum = sums.find(name); sum != sums.end()) values[name] = sum->second / steps->second;
  };
  for (const char* name : {"loss", "gradient_norm"})
    if (has_steps)
      add_mean(name);
    else
      values[name] = std::numeric_limits<double>::quiet_NaN();
  for (const std::string& name : objective::term_names(stage_.objective, decoders_)) add_mean("term." + name);
  for (size_t term = 0; term < decoders_ * stage_.objective.size(); ++term)
    for (const std::string& figure : figures(term)) add_mean(figure);
  if (const double all = has_steps ? sums.at("all_rows") : 0; all > 0)
    values["padding_share"] = 1 - sums.at("used_rows") / all;
  if (const auto watched = sums.find("watched"); watched != sums.end())
    values["attention_entropy"] = sums.at("attention_entropy") / watched->second;
  values["samples"] = static_cast<double>(state_.samples);
  values["text_tokens"] = static_cast<double>(state_.text_tokens);
  values["decoder_tokens"] = static_cast<double>(decoder_tokens());
  values["frames"] = static_cast<double>(state_.frames);
  for (auto& [name, count] : numbers_of(sample_counts(state_.cursor))) values[name] = count;
  values["skipped_steps"] = static_cast<double>(state_.guard.skipped);
  return values;
}

std::optional<report::Record> Interval::take(PartTimes& times) {
  if (!state_.interval.contains("steps")) return {};
  report::Record record{"step", stage_.name, state_.step, {}, {}};
  for (const auto& [name, value] : values()) record.values.emplace_back(name, value);
  add_times(times);
  auto sums = std::exchange(state_.interval, {});
  double seconds = 0;
  for (const auto& [name, sum] : sums)
    if (name.starts_with("time.")) seconds += sum;
  if (seconds > 0) {
    sums["decoder_tokens"] =
        sums["text_tokens"] + static_cast<double>(rows_per_frame_) * sums["frames"] - sums["left_out_rows"];
    for (const char* what : {"samples", "text_tokens", "decoder_tokens", "frames", "flops"})
      record.values.emplace_back(fmt::format("{}_per_second", what), sums[what] / seconds);
    if (peak_) record.values.emplace_back("mfu", sums["flops"] / seconds / *peak_);
    record.values.emplace_back("data_wait_share", sums["time.wait"] / seconds);
  }
  record.values.emplace_back("memory_bytes", static_cast<double>(memory_in_use()));
  if (!device_.is_cpu()) add_device(record);
  for (const auto& [name, sum] : sums)
    if (name.starts_with("time.")) record.values.emplace_back(name, sum);
  return record;
}

} // namespace fvlm::train
