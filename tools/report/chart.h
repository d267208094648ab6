// One chart as HTML: inline SVG that stretches to its column, with the labels as text beside it so that both stay sharp
// at any width, and the plotted points as JSON for the tooltip of page/script.js. It can be read without the script.
#pragma once
#include <string>
#include <vector>

namespace fvlm::report {

struct ChartLine {
  std::string name;    // in the tooltip
  int colour = 1;      // of the page's palette: --c1, --c2, ...
  bool raw = false;    // drawn faintly behind the others; outliers may lie outside the axis
  bool points = false; // draws a dot at each value, for lines with few of them
  std::vector<double> x, y;
  std::string key = {}; // in the legend; empty: the name
};

struct ChartFlag {
  double x = 0;
  std::string kind, text, anchor; // anchor: "event-3"
};

struct ChartStage {
  std::string name;
  double begin = 0, end = 0; // x
};

struct Chart {
  enum class Format { number, percent };
  std::string title;
  std::vector<ChartLine> lines;
  std::vector<ChartFlag> flags;
  std::vector<ChartStage> stages; // several stages label the x axis by name, a single one by its steps
  Format format = Format::number;
  bool from_zero = false;
  bool may_be_log = false; // uses a logarithmic axis where the values span more than a decade
};

// Returns an empty string where no line has a point.
std::string chart_html(const Chart& chart);

// Weighted means over up to `reach` neighbours on each side, nearer ones weighing more; the window is shorter at the
// beginning, where curves are steep. Values that are not finite are left out.
std::vector<double> smoothed(const std::vector<double>& values, size_t reach);

// A small curve without axes, for a table cell.
std::string sparkline(const std::vector<double>& values);

} // namespace fvlm::report
