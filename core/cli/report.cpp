// fvlm-engine report: the HTML report of a run, and its figures in short.
#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/options.h"
#include "report/page.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace fvlm::cli {
namespace {

using Json = nlohmann::ordered_json;

Json number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

Json as_json(const report::Report& made) {
  Json stages = Json::array(), evaluations = Json::array();
  for (size_t s = 0; s < made.run.stages.size(); ++s) {
    const auto& figures = made.figures[s];
    stages.push_back({{"stage", made.run.stages[s].name},
                      {"done", figures.done},
                      {"step", figures.step},
                      {"samples", number(figures.samples)},
                      {"seconds", figures.seconds},
                      {"first_loss", number(figures.first_loss)},
                      {"last_loss", number(figures.last_loss)}});
  }
  for (const auto& line : report::last_evaluations(made.run)) {
    Json entry{
        {"stage", line.stage}, {"step", line.step}, {"set", line.set}, {"mode", line.mode}, {"measure", line.measure}};
    for (const auto& [name, value] : line.values) entry[name] = number(value);
    evaluations.push_back(std::move(entry));
  }
  return {{"report", made.file.string()},
          {"bytes", made.bytes},
          {"stages", stages},
          {"evaluations", evaluations},
          {"missing", made.notes}};
}

std::string share(const std::optional<double>& value) {
  return value ? fmt::format("{:.1f} %", 100 * *value) : "-";
}

std::string plain(const std::optional<double>& value) {
  return value ? fmt::format("{:.4g}", *value) : "-";
}

void print_stages(const report::Report& made) {
  TextTable table({"stage", "steps", "samples", "time", "first loss", "final loss"});
  for (size_t s = 0; s < made.run.stages.size(); ++s) {
    const auto& stage = made.run.stages[s];
    const auto& figures = made.figures[s];
    std::string steps = grouped(figures.step);
    if (stage.steps && figures.step != *stage.steps) steps += " of " + grouped(*stage.steps);
    table.row({stage.name, figures.begun ? steps : "not begun",
               figures.samples ? grouped(std::llround(*figures.samples)) : "-",
               figures.seconds > 0 ? human_duration(figures.seconds) : "-", plain(figures.first_loss),
               plain(figures.last_loss)});
  }
  fmt::print("{}", table.text());
}

// Accuracy by kind of question, a column a mode.
void print_kinds(const std::vector<report::EvaluationLine>& lines) {
  constexpr std::string_view prefix = "accuracy.";
  std::vector<std::string> header = {"set", "kind"};
  std::vector<std::pair<std::string, std::string>> kinds; // set and kind
  const auto add = [](auto& list, const auto& one) {
    if (std::find(list.begin(), list.end(), one) == list.end()) list.push_back(one);
  };
  for (const auto& line : lines)
    for (const auto& [name, value] : line.values) {
      if (!name.starts_with(prefix)) continue;
      add(header, line.mode);
      add(kinds, std::pair(line.set, name.substr(prefix.size())));
    }
  if (kinds.empty()) return;
  TextTable table(header);
  for (const auto& [set, kind] : kinds) {
    std::vector<std::string> row = {set, kind};
    for (size_t column = 2; column < header.size(); ++column) {
      std::optional<double> found;
      for (const auto& line : lines)
        if (line.set == set && line.mode == header[column]) found = line.find(std::string(prefix) + kind);
      row.push_back(share(found));
    }
    table.row(row);
  }
  fmt::print("\n{}", table.text());
}

void print_evaluations(const report::Report& made) {
  auto lines = report::last_evaluations(made.run);
  if (lines.empty()) return;
  TextTable table({"set", "mode", "after", "samples", "accuracy", "loss"});
  for (const auto& line : lines) {
    auto samples = line.find("samples");
    table.row({line.set, line.mode, line.stage, samples ? grouped(std::llround(*samples)) : "-",
               share(line.find("accuracy")), plain(line.find("loss"))});
  }
  fmt::print("\n{}", table.text());
  print_kinds(lines);
}

} // namespace

int run_report(Arguments arguments) {
  Options options(
      "report RUN [--out FILE] [--json]",
      "Makes one HTML file of what lies in a run's folder: curves, results, where the time went, answers with\n"
      "where the model looked, the Plan. It needs no network. A run that still goes on has a report too.",
      "report runs/quickstart");
  options.positional("RUN", "the folder of a run")
      .value("out", "FILE", "where to write it (RUN/report.html)")
      .flag("json", "the figures in short, as one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  std::filesystem::path run = *parsed->value("RUN");
  auto out = parsed->value("out");
  auto made = out ? report::write_report(run, *out) : report::write_report(run);
  if (parsed->flag("json")) {
    fmt::print("{}\n", as_json(made).dump(2, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  print_stages(made);
  print_evaluations(made);
  if (!made.notes.empty()) fmt::print("\n{}\n", styled("Not in the report", Style::bold));
  for (const auto& note : made.notes) fmt::print("  {}\n", note);
  fmt::print("\n{} ({})\n", made.file.string(), human_bytes(made.bytes));
  return 0;
}

} // namespace fvlm::cli
