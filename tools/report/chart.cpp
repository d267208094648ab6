#include "report/chart.h"

#include "base/text.h"
#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace fvlm::report {
namespace {

constexpr size_t max_points = 600, max_flags = 60;

struct Axis {
  double from = 0, to = 1;
  bool log = false;
  double place(double value) const { // 0 .. 1 within the axis
    return log ? (std::log10(value) - std::log10(from)) / (std::log10(to) - std::log10(from))
               : (value - from) / (to - from);
  }
};

// Reduces a line to at most `max_points`, keeping minimum and maximum of each merged range, so that no spike is lost.
ChartLine thinned(const ChartLine& line) {
  if (line.x.size() <= max_points) return line;
  ChartLine out = line;
  out.x.clear();
  out.y.clear();
  size_t buckets = max_points / 2;
  for (size_t bucket = 0; bucket < buckets; ++bucket) {
    size_t begin = bucket * line.x.size() / buckets, end = (bucket + 1) * line.x.size() / buckets;
    size_t lowest = end, highest = end;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(line.y[i])) continue;
      if (lowest == end || line.y[i] < line.y[lowest]) lowest = i;
      if (highest == end || line.y[i] > line.y[highest]) highest = i;
    }
    if (lowest == end) lowest = highest = begin; // keeps gaps
    for (size_t i : {std::min(lowest, highest), std::max(lowest, highest)}) {
      out.x.push_back(line.x[i]);
      out.y.push_back(line.y[i]);
      if (lowest == highest) break;
    }
  }
  return out;
}

Axis x_axis(const Chart& chart) {
  Axis axis{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const auto& stage : chart.stages)
    axis.from = std::min(axis.from, stage.begin), axis.to = std::max(axis.to, stage.end);
  for (const auto& line : chart.lines)
    for (double x : line.x) axis.from = std::min(axis.from, x), axis.to = std::max(axis.to, x);
  for (const auto& flag : chart.flags) axis.to = std::max(axis.to, flag.x); // steps that were not applied have no line
  if (!(axis.to > axis.from)) axis.to = axis.from + 1;
  return axis;
}

// The axis covers raw lines except for their outermost percent, so that one spike does not flatten the rest.
Axis y_axis(const Chart& chart) {
  std::vector<double> values;
  double lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
  for (const auto& line : chart.lines) {
    std::vector<double> own;
    std::ranges::copy_if(line.y, std::back_inserter(own), [](double y) { return std::isfinite(y); });
    if (own.empty()) continue;
    std::ranges::sort(own);
    size_t beyond = line.raw ? own.size() / 100 : 0;
    lowest = std::min(lowest, own[beyond]);
    highest = std::max(highest, own[own.size() - 1 - beyond]);
  }
  constexpr double far = 1e100; // values beyond are clamped
  lowest = std::clamp(lowest, -far, far);
  highest = std::clamp(highest, -far, far);
  Axis axis{lowest, highest};
  if (chart.format == Chart::Format::percent) return {0, std::max(highest <= 1.0001 ? highest : 1, 0.01) * 1.04};
  if (chart.may_be_log && lowest > 1 / far && highest / lowest > 10) {
    double room = std::pow(highest / lowest, 0.03);
    return {lowest / room, highest * room, true};
  }
  if (chart.from_zero) axis.from = std::min(0.0, lowest);
  double room = (axis.to - axis.from) * 0.04;
  if (room == 0) room = std::max(std::abs(highest) * 0.1, 1e-12);
  axis.to += room;
  if (!(chart.from_zero && axis.from == 0)) axis.from -= room;
  return axis;
}

std::vector<double> linear_ticks(const Axis& axis, double wanted) {
  double raw = (axis.to - axis.from) / wanted, power = std::pow(10, std::floor(std::log10(raw)));
  double step = power * (raw / power < 1.5 ? 1 : raw / power < 3.5 ? 2 : raw / power < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  for (double n = std::ceil(axis.from / step); n * step <= axis.to * (1 + 1e-12) && ticks.size() < 20; ++n)
    ticks.push_back(n * step + 0.0);
  return ticks;
}

std::vector<double> log_ticks(const Axis& axis) {
  std::vector<double> all, decades;
  for (double power = std::floor(std::log10(axis.from)); power <= std::log10(axis.to); ++power)
    for (double digit : {1, 2, 5}) {
      double tick = digit * std::pow(10, power);
      if (tick < axis.from || tick > axis.to) continue;
      all.push_back(tick);
      if (digit == 1) decades.push_back(tick);
    }
  return all.size() > 6 && decades.size() >= 2 ? decades : all;
}

std::string tick_text(double value, Chart::Format format, const Axis& axis) {
  if (format == Chart::Format::percent) return percent(value, axis.to < 0.045 ? 1 : 0);
  return std::abs(value) >= 10000 ? short_count(value) : figure(value); // the column of labels is narrow
}

// Within the viewBox of 1000 x 1000, whose y goes down.
std::string coordinate(double share) {
  return fmt::format("{:.4g}", std::clamp(share, -10.0, 10.0) * 1000);
}

std::string path_of(const ChartLine& line, const Axis& x, const Axis& y) {
  std::string out;
  bool pen_down = false;
  for (size_t i = 0; i < line.x.size(); ++i) {
    if (i > 0 && line.x[i] < line.x[i - 1]) pen_down = false; // the run was rolled back
    if (!std::isfinite(line.y[i]) || (y.log && line.y[i] <= 0)) {
      pen_down = false;
      continue;
    }
    out += fmt::format("{}{} {}", pen_down ? 'L' : 'M', coordinate(x.place(line.x[i])),
                       coordinate(1 - y.place(line.y[i])));
    if (!pen_down && (i + 1 == line.x.size() || !std::isfinite(line.y[i + 1]))) out += "h0"; // a point alone
    pen_down = true;
  }
  return out;
}

std::string json_numbers(const std::vector<double>& values) {
  std::string out = "[";
  for (double value : values) {
    if (out.size() > 1) out += ',';
    out += std::isfinite(value) ? fmt::format("{:.6g}", value) : "null";
  }
  return out + "]";
}

std::string read_out(const Chart& chart, const Axis& x) {
  std::string lines, stages;
  for (const auto& line : chart.lines)
    lines +=
        fmt::format(R"({}{{"name":{},"colour":"{}","x":{},"y":{}}})", lines.empty() ? "" : ",",
                    script_string(line.name), colour_class(line.colour), json_numbers(line.x), json_numbers(line.y));
  for (const auto& stage : chart.stages)
    stages += fmt::format(R"({}[{},{:.6g},{:.6g}])", stages.empty() ? "" : ",", script_string(stage.name), stage.begin,
                          stage.end);
  return fmt::format(
      R"(<script type="application/json">{{"from":{:.6g},"to":{:.6g},"format":"{}","stages":[{}],"lines":[{}]}}</script>)",
      x.from, x.to, chart.format == Chart::Format::percent ? "percent" : "number", stages, lines);
}

// The legend of the lines that are not faint, if there is more than one.
std::string legend(const Chart& chart) {
  std::string out;
  if (std::ranges::count_if(chart.lines, [](const auto& line) { return !line.raw; }) < 2) return out;
  for (const auto& line : chart.lines)
    if (!line.raw)
      out += fmt::format(R"(<span class="key {}">{}</span>)", colour_class(line.colour),
                         escaped(line.key.empty() ? line.name : line.key));
  return out;
}

// A stage's name is centred below the stage, or moved inwards where it would exceed the axis. If it would touch another
// name, it is truncated. Widths are those of a phone; other screens have more room.
std::string stage_labels(const Chart& chart, const Axis& x) {
  constexpr double character = 0.02, gap = 0.015; // of the axis
  struct Label {
    double begin, end;
    bool at_begin, at_end;
    bool overlaps(const Label& other) const { return begin < other.end + gap && other.begin < end + gap; }
  };
  std::vector<Label> labels;
  for (const auto& stage : chart.stages) {
    const double width = character * static_cast<double>(display_width(stage.name));
    const double middle = (x.place(stage.begin) + x.place(stage.end)) / 2;
    const bool at_begin = middle < width / 2, at_end = !at_begin && middle + width / 2 > 1;
    const double begin = at_begin ? 0 : at_end ? 1 - width : middle - width / 2;
    labels.push_back({begin, begin + width, at_begin, at_end});
  }
  std::string out;
  for (size_t i = 0; i < labels.size(); ++i) {
    const ChartStage& stage = chart.stages[i];
    const double begin = x.place(stage.begin), end = x.place(stage.end);
    bool crowded = labels[i].begin < 0 || labels[i].end > 1 + 1e-9;
    for (size_t other = 0; other < labels.size(); ++other)
      crowded = crowded || (other != i && labels[i].overlaps(labels[other]));
    std::string place = fmt::format(R"(style="left:{:.2f}%")", 50 * (begin + end));
    if (crowded)
      place = fmt::format(R"(class="short" style="left:{:.2f}%;width:{:.2f}%")", 100 * begin, 100 * (end - begin));
    else if (labels[i].at_begin)
      place = R"(class="first")";
    else if (labels[i].at_end)
      place = R"(class="last")";
    out += fmt::format("<span {}>{}</span>", place, escaped(stage.name));
  }
  return out;
}

std::string x_labels(const Chart& chart, const Axis& x) {
  if (chart.stages.size() > 1) return fmt::format(R"(<div class="x">{}</div>)", stage_labels(chart, x));
  std::string ticks;
  for (double tick : linear_ticks(x, 5)) {
    const bool at_end = x.place(tick) > 0.97; // a centred label would exceed the chart
    ticks += fmt::format("<span {}>{}</span>",
                         at_end ? std::string(R"(class="last")")
                                : fmt::format(R"(style="left:{:.2f}%")", 100 * x.place(tick)),
                         x.to >= 10000 ? short_count(tick) : figure(tick));
  }
  return fmt::format(R"(<div class="unit">step</div><div class="x">{}</div>)", ticks);
}

} // namespace

std::vector<double> smoothed(const std::vector<double>& values, size_t reach) {
  std::vector<double> out;
  out.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    size_t near = std::min(reach, i / 6);
    double total = 0, weights = 0;
    for (size_t j = i - near; j <= std::min(i + near, values.size() - 1); ++j) {
      if (!std::isfinite(values[j])) continue;
      double weight = static_cast<double>(near + 1 - (j < i ? i - j : j - i));
      total += weight * values[j];
      weights += weight;
    }
    out.push_back(weights > 0 ? total / weights : values[i]);
  }
  return out;
}

std::string chart_html(const Chart& whole) {
  Chart chart = whole;
  for (auto& line : chart.lines) line = thinned(line);
  std::erase_if(chart.lines, [](const ChartLine& line) {
    return std::ranges::none_of(line.y, [](double y) { return std::isfinite(y); });
  });
  if (chart.lines.empty()) return "";
  Axis x = x_axis(chart), y = y_axis(whole);
  std::string grid, y_labels, drawn, dots, flags;
  for (double tick : y.log ? log_ticks(y) : linear_ticks(y, 4)) {
    grid += fmt::format("M0 {}H1000", coordinate(1 - y.place(tick)));
    y_labels += fmt::format(R"(<span style="top:{:.2f}%">{}</span>)", 100 * (1 - y.place(tick)),
                            tick_text(tick, chart.format, y));
  }
  std::string borders;
  for (size_t i = 1; i < chart.stages.size(); ++i)
    borders += fmt::format("M{} 0V1000", coordinate(x.place(chart.stages[i].begin)));
  for (bool raw : {true, false})
    for (const auto& line : chart.lines) {
      if (line.raw != raw) continue;
      drawn += fmt::format(R"(<path class="{} {}" d="{}"/>)", raw ? "raw" : "line", colour_class(line.colour),
                           path_of(line, x, y));
      const bool alone = std::ranges::count_if(line.y, [](double value) { return std::isfinite(value); }) == 1;
      for (size_t i = 0; (line.points || (alone && !raw)) && i < line.x.size(); ++i)
        if (std::isfinite(line.y[i]))
          dots += fmt::format(R"(<i class="dot {}" style="left:{:.2f}%;top:{:.2f}%"></i>)", colour_class(line.colour),
                              100 * x.place(line.x[i]), 100 * (1 - y.place(line.y[i])));
    }
  for (size_t i = 0; i < chart.flags.size() && i < max_flags; ++i) {
    const ChartFlag& flag = chart.flags[i];
    flags += fmt::format(R"(<a class="flag {}" href="#{}" style="left:{:.2f}%" title="{}"></a>)", escaped(flag.kind),
                         escaped(flag.anchor), 100 * x.place(flag.x), escaped(flag.text));
  }
  std::string scale = y.log ? R"(<span class="scale">log scale</span>)" : "";
  return fmt::format(
      R"(<figure class="chart"><figcaption><b>{}</b>{}<span class="keys">{}</span></figcaption>
<div class="plot"><div class="y">{}</div><div class="area"><svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label="{}"><path class="grid" d="{}"/><path class="border" d="{}"/>{}</svg>{}{}</div>{}</div>
{}</figure>
)",
      escaped(chart.title), scale, legend(chart), y_labels, escaped(chart.title), grid, borders, drawn, dots, flags,
      x_labels(chart, x), read_out(chart, x));
}

std::string sparkline(const std::vector<double>& values) {
  ChartLine line;
  for (size_t i = 0; i < values.size(); ++i) line.x.push_back(static_cast<double>(i)), line.y.push_back(values[i]);
  Chart chart;
  chart.lines = {thinned(line)};
  return fmt::format(
      R"(<svg class="spark" viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true"><path class="line" d="{}"/></svg>)",
      path_of(chart.lines[0], x_axis(chart), y_axis(chart)));
}

} // namespace fvlm::report
