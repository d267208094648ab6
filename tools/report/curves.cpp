// Which curves the report draws.
#include "report/chart.h"
#include "report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::report {
namespace {

std::vector<double> as_numbers(const std::vector<int64_t>& steps, double offset = 0) {
  std::vector<double> out;
  out.reserve(steps.size());
  for (int64_t step : steps) out.push_back(static_cast<double>(step) + offset);
  return out;
}

size_t reach(const StepLines& lines) {
  return std::clamp<size_t>(lines.steps.size() / 30, 1, 200);
}

std::vector<ChartFlag> flags_of(const RecordedRun& run, const std::string& stage) {
  std::vector<ChartFlag> flags;
  for (size_t i = 0; i < run.events.size(); ++i) {
    const Event& event = run.events[i];
    if (event.stage == stage && is_noteworthy(event))
      flags.push_back({static_cast<double>(event.step), event.what,
                       fmt::format("{} at step {}: {}", event.what, event.step, event.text),
                       fmt::format("event-{}", i + 1)});
  }
  return flags;
}

// One chart per stage, because losses of different objectives are not comparable.
std::string loss_charts(const PageInput& input) {
  std::string out;
  for (const auto& stage : input.run.stages) {
    const auto* loss = stage.lines.find("loss");
    if (!loss) continue;
    Chart chart;
    chart.title = fmt::format("Loss, {}", stage.name);
    chart.may_be_log = true;
    chart.stages = {{stage.name, 0, static_cast<double>(stage.lines.steps.back())}};
    auto x = as_numbers(stage.lines.steps);
    size_t near = reach(stage.lines);
    chart.lines.push_back({"loss", 1, true, false, x, *loss});
    chart.lines.push_back({"loss, smoothed", 1, false, false, x, smoothed(*loss, near)});
    auto terms = stage.lines.names("term.");
    if (terms.size() > 1)
      for (size_t i = 0; i < terms.size(); ++i)
        chart.lines.push_back({terms[i].substr(5), static_cast<int>(2 + i), false, false, x,
                               smoothed(*stage.lines.find(terms[i]), near)});
    chart.flags = flags_of(input.run, stage.name);
    out += chart_html(chart);
  }
  return out;
}

struct Wanted {
  const char* title;
  std::vector<std::pair<const char*, const char*>> columns; // name, label
  Chart::Format format = Chart::Format::number;
  bool from_zero = false, may_be_log = false, smooth = false;
};

// All stages in sequence on one axis.
class Timeline {
 public:
  // The stages whose lines have a column with this prefix.
  Timeline(const RecordedRun& run, const std::vector<std::string>& columns) : run_(run) {
    double offset = 0;
    for (const auto& stage : run.stages) {
      offsets_.push_back(offset);
      if (std::ranges::none_of(columns, [&](const auto& column) { return !stage.lines.names(column).empty(); }))
        continue;
      double end = offset + static_cast<double>(stage.lines.steps.back());
      stages_.push_back({stage.name, offset, end});
      offset = end;
    }
  }

  // A column over all stages, with gaps between them.
  ChartLine line(const std::string& column, const std::string& label, int colour, bool smooth) const {
    ChartLine out{label, colour, false, false, {}, {}};
    for (size_t s = 0; s < run_.stages.size(); ++s) {
      const StepLines& lines = run_.stages[s].lines;
      const auto* values = lines.find(column);
      if (!values) continue;
      auto x = as_numbers(lines.steps, offsets_[s]);
      auto y = smooth ? smoothed(*values, reach(lines)) : *values;
      if (!out.x.empty()) out.x.push_back(x.front()), out.y.push_back(std::nan(""));
      out.x.insert(out.x.end(), x.begin(), x.end());
      out.y.insert(out.y.end(), y.begin(), y.end());
    }
    return out;
  }

  std::string chart(const Wanted& wanted) const {
    Chart chart = empty(wanted.title);
    chart.format = wanted.format;
    chart.from_zero = wanted.from_zero;
    chart.may_be_log = wanted.may_be_log;
    int colour = 0;
    for (const auto& [column, label] : wanted.columns) {
      ++colour;
      ChartLine raw = line(column, label, colour, false);
      if (raw.x.empty()) continue;
      raw.raw = wanted.smooth;
      chart.lines.push_back(raw);
      if (!wanted.smooth) continue;
      chart.lines.push_back(line(column, fmt::format("{}, smoothed", label), colour, true));
      chart.lines.back().key = label;
    }
    return chart_html(chart);
  }

  std::string learning_rates() const {
    Chart chart = empty("Learning rate");
    chart.from_zero = true;
    std::vector<std::string> columns;
    for (const auto& stage : run_.stages)
      for (const auto& name : stage.lines.names("lr."))
        if (std::ranges::find(columns, name) == columns.end()) columns.push_back(name);
    for (const auto& column : columns) {
      ChartLine next = line(column, column.substr(3), static_cast<int>(chart.lines.size()) + 1, false);
      auto same = std::ranges::find_if(chart.lines, [&](const ChartLine& other) { return same_points(other, next); });
      if (same != chart.lines.end())
        same->name += ", " + next.name; // groups with equal rates share a line
      else
        chart.lines.push_back(std::move(next));
    }
    return chart_html(chart);
  }

  double offset(const std::string& stage) const {
    for (size_t s = 0; s < run_.stages.size(); ++s)
      if (run_.stages[s].name == stage) return offsets_[s];
    return 0;
  }

  Chart empty(const char* title) const {
    Chart chart;
    chart.title = title;
    chart.stages = stages_;
    return chart;
  }

 private:
  static bool same_points(const ChartLine& a, const ChartLine& b) {
    return a.x == b.x && std::equal(a.y.begin(), a.y.end(), b.y.begin(), b.y.end(),
                                    [](double p, double q) { return p == q || (std::isnan(p) && std::isnan(q)); });
  }

  const RecordedRun& run_;
  std::vector<double> offsets_; // of run_.stages
  std::vector<ChartStage> stages_;
};

// Held-out sets that were evaluated more than once.
std::string evaluation_chart(const PageInput& input, const char* title, const char* value, Chart::Format format) {
  Timeline timeline(input.run, {""});
  Chart chart = timeline.empty(title);
  chart.format = format;
  for (const auto& evaluation : input.run.evaluations) {
    auto number = evaluation.find(value);
    if (!number) continue;
    std::string name = evaluation.set + " " + evaluation.mode;
    auto line = std::ranges::find_if(chart.lines, [&](const auto& other) { return other.name == name; });
    if (line == chart.lines.end()) {
      chart.lines.push_back({name, static_cast<int>(chart.lines.size()) + 1, false, true, {}, {}});
      line = chart.lines.end() - 1;
    }
    line->x.push_back(static_cast<double>(evaluation.step) + timeline.offset(evaluation.stage));
    line->y.push_back(*number);
  }
  std::erase_if(chart.lines, [](const ChartLine& line) { return line.x.size() < 2; });
  return chart_html(chart);
}

} // namespace

std::string curves(const PageInput& input) {
  using Format = Chart::Format;
  auto chart = [&](const Wanted& wanted) {
    std::vector<std::string> columns;
    for (const auto& column : wanted.columns) columns.emplace_back(column.first);
    return Timeline(input.run, columns).chart(wanted);
  };
  std::string out = loss_charts(input);
  out += evaluation_chart(input, "Accuracy on held-out sets", "accuracy", Format::percent);
  out += evaluation_chart(input, "Recall@1 on held-out sets", "recall_at_1", Format::percent);
  out += evaluation_chart(input, "Loss on held-out sets", "loss", Format::number);
  out += Timeline(input.run, {"lr."}).learning_rates();
  out += chart(
      {.title = "Gradient norm", .columns = {{"gradient_norm", "gradient norm"}}, .may_be_log = true, .smooth = true});
  out += chart({.title = "Samples a second",
                .columns = {{"samples_per_second", "samples a second"}},
                .from_zero = true,
                .smooth = true});
  out += chart({.title = "Reward accuracy",
                .columns = {{"reward_accuracy", "reward accuracy"}},
                .format = Format::percent,
                .smooth = true});
  out +=
      chart({.title = "Rewards",
             .columns = {{"chosen_reward", "chosen"}, {"rejected_reward", "rejected"}, {"reward_margin", "margin"}}});
  out += chart({.title = "Retrieval accuracy in a pack",
                .columns = {{"retrieval_accuracy", "retrieval accuracy"}},
                .format = Format::percent,
                .smooth = true});
  out += chart({.title = "Cosine similarities",
                .columns = {{"positive_similarity", "positives"}, {"negative_similarity", "negatives"}},
                .smooth = true});
  out += chart({.title = "Waiting for data, padding",
                .columns = {{"data_wait_share", "waiting for data"}, {"padding_share", "padding"}},
                .format = Format::percent,
                .smooth = true});
  out += chart({.title = "Model FLOPs utilisation", .columns = {{"mfu", "MFU"}}, .format = Format::percent});
  out += chart({.title = "Attention entropy", .columns = {{"attention_entropy", "attention entropy"}}});
  return out;
}

} // namespace fvlm::report
