#include "report/run_summary.h"

#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace fvlm::report {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Unknown values are empty cells.
std::string share_cell(const std::optional<double>& value) {
  return value ? fmt::format("{:.1f} %", 100 * *value) : "";
}

std::string figure_cell(const std::optional<double>& value) {
  return value ? fmt::format("{:.4g}", *value) : "";
}

std::string count_cell(const std::optional<double>& value) {
  return value ? grouped(std::llround(*value)) : "";
}

std::string rate_cell(const std::optional<double>& rate) {
  if (!rate) return "";
  return *rate >= 100 ? grouped(std::llround(*rate)) : fmt::format("{:.3g}", *rate);
}

std::string time_cell(double seconds) {
  return seconds > 0 ? human_duration(seconds) : "";
}

std::string final_loss_cell(const StageFigures& of) {
  if (of.has_final_loss()) return fmt::format("{} ({})", figure_cell(of.last_loss), of.last_loss_steps.text());
  return of.last_loss ? StageFigures::only_loss : "";
}

std::string stages_table(const RecordedRun& run, const std::vector<StageFigures>& figures) {
  const FirstLossLabel label(figures);
  TextTable table({"stage", "steps", "samples", "text tokens", "time", "samples/s", label.header, "final loss"});
  double steps = 0, samples = 0, tokens = 0, seconds = 0;
  for (size_t s = 0; s < run.stages.size(); ++s) {
    const Stage& stage = run.stages[s];
    const StageFigures& of = figures[s];
    std::string step = grouped(of.step);
    if (stage.steps && of.step != *stage.steps) step += " of " + grouped(*stage.steps);
    std::string first_loss = figure_cell(of.first_loss);
    if (const std::string steps = label.beside(of); !steps.empty()) first_loss += fmt::format(" ({})", steps);
    table.row({strip_control_characters(stage.name), of.begun ? step : "not begun", count_cell(of.samples),
               count_cell(of.text_tokens), time_cell(of.seconds), rate_cell(of.samples_per_second), first_loss,
               final_loss_cell(of)});
    steps += static_cast<double>(of.step);
    samples += of.samples.value_or(0);
    tokens += of.text_tokens.value_or(0);
    seconds += of.seconds;
  }
  if (run.stages.size() > 1)
    table.row({"all", count_cell(steps), count_cell(samples), count_cell(tokens), time_cell(seconds),
               seconds > 0 ? rate_cell(samples / seconds) : "", "", ""});
  return table.text();
}

// Lines for stages that skipped or truncated samples.
std::string samples_text(const RecordedRun& run) {
  std::string text;
  for (const Stage& stage : run.stages)
    if (stage.counts && stage.counts->all_skipped() + stage.counts->cut > 0)
      text += fmt::format("{}: {}\n", strip_control_characters(stage.name), stage.counts->text());
  return text;
}

OrderedJson samples_json(const SampleCounts& counts) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, number] : numbers_of(counts)) json[name] = std::llround(number);
  return json;
}

std::string evaluations_table(const RecordedRun& run) {
  struct Column {
    const char *name, *title;
    bool share;
  };
  static constexpr Column all[] = {{"accuracy", "accuracy", true},
                                   {"recall_at_1", "recall@1", true},
                                   {"recall_at_5", "recall@5", true},
                                   {"mrr", "MRR", false},
                                   {"iou", "IoU", false},
                                   {"box_accuracy", "box accuracy", true},
                                   {"loss", "loss", false},
                                   {"margin", "margin", false},
                                   {"reward_accuracy", "reward accuracy", true},
                                   {"reward_margin", "reward margin", false}};
  const auto lines = last_evaluations(run);
  if (lines.empty()) return "";
  std::vector<Column> columns;
  std::vector<std::string> header = {"set", "mode", "after", "samples"};
  for (const Column& column : all)
    if (std::ranges::any_of(lines, [&](const auto& line) { return line.find(column.name).has_value(); })) {
      columns.push_back(column);
      header.emplace_back(column.title);
    }
  TextTable table(header);
  for (const EvaluationLine& line : lines) {
    std::vector<std::string> cells = {strip_control_characters(line.set), line.mode,
                                      fmt::format("{} {}", strip_control_characters(line.stage), grouped(line.step)),
                                      count_cell(line.find("samples"))};
    for (const Column& column : columns)
      cells.push_back(column.share ? share_cell(line.find(column.name)) : figure_cell(line.find(column.name)));
    table.row(std::move(cells));
  }
  return table.text();
}

OrderedJson json_number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? OrderedJson(*value) : OrderedJson(nullptr);
}

} // namespace

std::string summary_text(const RecordedRun& run, const std::vector<StageFigures>& figures) {
  const std::string evaluations = evaluations_table(run);
  return stages_table(run, figures) + samples_text(run) + (evaluations.empty() ? "" : "\n" + evaluations);
}

std::string kinds_text(const RecordedRun& run) {
  constexpr std::string_view prefix = "accuracy.";
  const auto lines = last_evaluations(run);
  std::vector<std::string> header = {"set", "kind"};
  std::vector<std::pair<std::string, std::string>> kinds; // set and kind
  const auto add = [](auto& list, const auto& one) {
    if (std::ranges::find(list, one) == list.end()) list.push_back(one);
  };
  for (const auto& line : lines)
    for (const auto& [name, value] : line.values) {
      if (!name.starts_with(prefix)) continue;
      add(header, line.mode);
      add(kinds, std::pair(line.set, name.substr(prefix.size())));
    }
  if (kinds.empty()) return "";
  TextTable table(header);
  for (const auto& [set, kind] : kinds) {
    std::vector<std::string> row = {strip_control_characters(set), strip_control_characters(kind)};
    for (size_t column = 2; column < header.size(); ++column) {
      std::optional<double> found;
      for (const auto& line : lines)
        if (line.set == set && line.mode == header[column]) found = line.find(std::string(prefix) + kind);
      row.push_back(share_cell(found));
    }
    table.row(row);
  }
  return table.text();
}

OrderedJson summary_json(const RecordedRun& run, const std::vector<StageFigures>& figures) {
  OrderedJson stages = OrderedJson::array(), evaluations = OrderedJson::array();
  for (size_t s = 0; s < run.stages.size(); ++s) {
    const StageFigures& of = figures[s];
    stages.push_back({{"stage", run.stages[s].name},
                      {"done", of.done},
                      {"step", of.step},
                      {"samples", json_number(of.samples)},
                      {"text_tokens", json_number(of.text_tokens)},
                      {"decoder_tokens", json_number(of.decoder_tokens)},
                      {"seconds", of.seconds},
                      {"samples_per_second", json_number(of.samples_per_second)},
                      {"first_loss", json_number(of.first_loss)},
                      {"first_loss_steps", {of.first_loss_steps.first, of.first_loss_steps.last}},
                      {"last_loss", json_number(of.last_loss)},
                      {"last_loss_steps", {of.last_loss_steps.first, of.last_loss_steps.last}}});
    if (run.stages[s].counts) stages.back()["data"] = samples_json(*run.stages[s].counts);
  }
  for (const auto& line : last_evaluations(run)) {
    OrderedJson entry{
        {"stage", line.stage}, {"step", line.step}, {"set", line.set}, {"mode", line.mode}, {"measure", line.measure}};
    for (const auto& [name, value] : line.values) entry[name] = json_number(value);
    evaluations.push_back(std::move(entry));
  }
  return {{"stages", stages}, {"evaluations", evaluations}};
}

} // namespace fvlm::report
