#include "report/comparison.h"

#include "base/file.h"
#include "base/text.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/page_input.h"
#include "report/page_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

namespace fvlm::report {
namespace {

namespace fs = std::filesystem;

constexpr const char* nothing = "–";

struct Compared {
  std::vector<RecordedRun> runs;
  std::vector<std::string> names;
};

// The ends of the folders' paths, long enough to differ.
std::vector<std::string> names_of(const std::vector<fs::path>& folders) {
  std::vector<fs::path> paths;
  for (const fs::path& folder : folders) paths.push_back(fs::weakly_canonical(folder));
  for (int parts = 1;; ++parts) {
    std::vector<std::string> names;
    bool is_whole = true;
    for (const fs::path& path : paths) {
      fs::path rest = path, name;
      for (int i = 0; i < parts && rest.has_relative_path(); ++i, rest = rest.parent_path())
        name = name.empty() ? rest.filename() : rest.filename() / name;
      is_whole = is_whole && !rest.has_relative_path();
      names.push_back(name.string());
    }
    if (is_whole || std::set<std::string>(names.begin(), names.end()).size() == names.size()) return names;
  }
}

std::vector<Comparison::Difference> differences_of(const std::vector<RecordedRun>& runs) {
  std::vector<Comparison::Difference> all;
  for (size_t run = 0; run < runs.size(); ++run)
    for (const PlanValue& value : read_plan_values(runs[run].folder)) {
      auto found = std::ranges::find_if(all, [&](const auto& other) { return other.path == value.path; });
      if (found == all.end())
        found = all.insert(all.end(), {value.path, std::vector<std::string>(runs.size(), nothing)});
      found->values[run] = value.value;
    }
  std::erase_if(all, [](const auto& one) {
    return std::ranges::all_of(one.values, [&](const auto& value) { return value == one.values[0]; });
  });
  return all;
}

std::vector<std::string> header_of(const std::vector<std::string>& first, const std::vector<std::string>& names) {
  std::vector<std::string> header = first;
  for (const std::string& name : names) header.push_back(name);
  return header;
}

std::string differences_table(const std::vector<Comparison::Difference>& differences,
                              const std::vector<std::string>& names) {
  if (differences.empty()) return "<p class=\"note\">The plans are the same.</p>\n";
  std::string rows;
  for (const auto& one : differences) {
    rows += fmt::format("<tr><th class=\"text\">{}</th>", escaped(one.path));
    for (const std::string& value : one.values) rows += text_cell(value, "long");
    rows += "</tr>";
  }
  std::vector<std::string> left{"<value"};
  for (const std::string& name : names) left.push_back("<" + name);
  return table(left, rows, "plan");
}

std::vector<std::string> stage_names(const std::vector<RecordedRun>& runs) {
  std::vector<std::string> names;
  for (const RecordedRun& run : runs)
    for (const Stage& stage : run.stages)
      if (std::ranges::find(names, stage.name) == names.end()) names.push_back(stage.name);
  return names;
}

using Cell = std::function<std::string(const RecordedRun& run)>;

std::string row_of(const Compared& compared, const std::string& stage, const std::string& what, const Cell& value) {
  std::string cells;
  bool has_any = false;
  for (const RecordedRun& run : compared.runs) {
    const std::string text = value(run);
    has_any = has_any || text != nothing;
    cells += cell(text);
  }
  return has_any ? fmt::format("<tr><th class=\"text\">{}</th>{}{}</tr>", escaped(stage), text_cell(what), cells) : "";
}

std::string figures_rows(const Compared& compared, const std::string& stage) {
  const auto of_figures = [&](const std::function<std::string(const StageFigures&)>& text) -> Cell {
    return [&stage, text](const RecordedRun& run) -> std::string {
      const Stage* found = run.find(stage);
      const StageFigures figures = found ? figures_of(*found) : StageFigures();
      return figures.begun ? text(figures) : nothing;
    };
  };
  return row_of(compared, stage, "steps", of_figures([](const auto& of) { return grouped(of.step); })) +
         row_of(compared, stage, "final loss", of_figures([](const auto& of) { return fixed(of.last_loss); })) +
         row_of(compared, stage, "samples a second",
                of_figures([](const auto& of) { return figure(of.samples_per_second); })) +
         row_of(compared, stage, "time", of_figures([](const auto& of) {
                  return of.seconds > 0 ? human_duration(of.seconds) : std::string(nothing);
                })) +
         row_of(compared, stage, "memory", of_figures([](const auto& of) {
                  const auto bytes = of.device_memory_bytes ? of.device_memory_bytes : of.memory_bytes;
                  return bytes ? human_bytes(static_cast<uint64_t>(*bytes)) : std::string(nothing);
                }));
}

// Of a set in a mode: the values that the last evaluations of a stage have.
std::string evaluation_rows(const Compared& compared, const std::string& stage) {
  std::vector<std::pair<std::string, std::string>> sets;
  std::vector<std::vector<EvaluationLine>> last;
  for (const RecordedRun& run : compared.runs) {
    last.push_back(last_evaluations(run));
    for (const EvaluationLine& line : last.back())
      if (std::pair key(line.set, line.mode); line.stage == stage && std::ranges::find(sets, key) == sets.end())
        sets.push_back(std::move(key));
  }
  std::string rows;
  for (const auto& [set, mode] : sets)
    for (const char* value :
         {"accuracy", "recall_at_1", "mrr", "iou", "box_accuracy", "loss", "bits_per_byte", "reward_accuracy"})
      rows += row_of(
          compared, stage, fmt::format("{}, {}: {}", set, mode, value), [&](const RecordedRun& run) -> std::string {
            for (const EvaluationLine& line : last[static_cast<size_t>(&run - compared.runs.data())])
              if (line.stage == stage && line.set == set && line.mode == mode)
                if (const auto number = line.find(value))
                  return std::string_view(value).ends_with("accuracy") || std::string_view(value).starts_with("recall")
                             ? percent(number)
                             : fixed(number);
            return nothing;
          });
  return rows;
}

std::string results(const Compared& compared) {
  std::string rows;
  for (const std::string& stage : stage_names(compared.runs))
    rows += figures_rows(compared, stage) + evaluation_rows(compared, stage);
  return rows.empty() ? "" : table(header_of({"<stage", "<"}, compared.names), rows);
}

std::vector<double> as_numbers(const std::vector<int64_t>& steps) {
  return {steps.begin(), steps.end()};
}

// A column of a stage's lines, a line of the chart for each run.
std::string column_chart(const Compared& compared, const std::string& stage, const char* column, const char* title,
                         bool may_be_log) {
  Chart chart;
  chart.title = fmt::format("{}, {}", title, stage);
  chart.may_be_log = may_be_log;
  double end = 0;
  for (size_t run = 0; run < compared.runs.size(); ++run) {
    const Stage* found = compared.runs[run].find(stage);
    const auto* values = found ? found->lines.find(column) : nullptr;
    if (!values) continue;
    const auto x = as_numbers(found->lines.steps);
    end = std::max(end, x.back());
    const size_t reach = std::clamp<size_t>(x.size() / 30, 1, 200);
    const std::string& name = compared.names[run];
    chart.lines.push_back({name, static_cast<int>(run) + 1, true, false, x, *values});
    chart.lines.push_back(
        {name + ", smoothed", static_cast<int>(run) + 1, false, false, x, smoothed(*values, reach), name});
  }
  chart.stages = {{stage, 0, end}};
  return chart_html(chart);
}

// A value of each set that was evaluated more than once in a stage.
std::string evaluation_charts(const Compared& compared, const std::string& stage, const char* value,
                              Chart::Format format) {
  std::vector<std::pair<std::string, Chart>> charts;
  for (size_t run = 0; run < compared.runs.size(); ++run)
    for (const EvaluationLine& evaluation : compared.runs[run].evaluations) {
      const auto number = evaluation.stage == stage ? evaluation.find(value) : std::nullopt;
      if (!number) continue;
      const std::string title = fmt::format("{}, {}: {}", evaluation.set, evaluation.mode, value);
      auto chart = std::ranges::find_if(charts, [&](const auto& other) { return other.first == title; });
      if (chart == charts.end()) {
        chart = charts.insert(charts.end(), {title, {}});
        chart->second.title = fmt::format("{}, {}", title, stage);
        chart->second.format = format;
        chart->second.stages = {{stage, 0, 0}};
      }
      auto& lines = chart->second.lines;
      if (lines.empty() || lines.back().name != compared.names[run])
        lines.push_back({compared.names[run], static_cast<int>(run) + 1, false, true, {}, {}});
      lines.back().x.push_back(static_cast<double>(evaluation.step));
      lines.back().y.push_back(*number);
      double& end = chart->second.stages.front().end;
      end = std::max(end, lines.back().x.back());
    }
  std::string out;
  for (auto& [title, chart] : charts) {
    std::erase_if(chart.lines, [](const ChartLine& line) { return line.x.size() < 2; });
    out += chart_html(chart);
  }
  return out;
}

std::string curves(const Compared& compared) {
  std::string out;
  for (const std::string& stage : stage_names(compared.runs)) {
    out += column_chart(compared, stage, "loss", "Loss", true);
    out += evaluation_charts(compared, stage, "accuracy", Chart::Format::percent);
    out += evaluation_charts(compared, stage, "loss", Chart::Format::number);
    out += column_chart(compared, stage, "gradient_norm", "Gradient norm", true);
    out += column_chart(compared, stage, "samples_per_second", "Samples a second", false);
  }
  return out.empty() ? "" : "<div class=\"charts\">\n" + out + "</div>\n";
}

} // namespace

Comparison write_comparison(const std::vector<fs::path>& folders, const fs::path& file) {
  Comparison made{file, 0, names_of(folders), {}};
  Compared compared{{}, made.names};
  std::vector<std::string> notes;
  for (size_t run = 0; run < folders.size(); ++run) {
    compared.runs.push_back(read_run(folders[run]));
    for (const std::string& note : compared.runs.back().notes)
      notes.push_back(fmt::format("{}: {}", made.names[run], note));
  }
  made.differences = differences_of(compared.runs);
  const std::string html =
      page_html_of({"Comparison of runs",
                    join(made.names, ", "),
                    "",
                    "",
                    {{"plan", "What the plans differ in", differences_table(made.differences, made.names)},
                     {"results", "Results", results(compared)},
                     {"curves", "Curves", curves(compared)},
                     {"notes", "Not on this page", notes_html(notes)}}});
  made.bytes = html.size();
  write_file_atomic(file, html);
  return made;
}

} // namespace fvlm::report
