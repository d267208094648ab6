// One chart: inline SVG that stretches to its column, labels as text beside it, so that both stay sharp at any width;
// and the plotted points as JSON for the read-out of page/script.js. It says all it has to say without the script too.
#pragma once
#include <string>
#include <vector>

namespace fvlm::report {

struct ChartLine {
  std::string name;    // of the read-out
  int colour = 1;      // of the page's palette: --c1, --c2, ...
  bool raw = false;    // faint, behind the others; its outermost points may lie outside the axis
  bool points = false; // few values far apart: dots on the line
  std::vector<double> x, y;
  std::string key = {}; // of the legend; empty: the name
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
  std::string title, note;
  std::vector<ChartLine> lines;
  std::vector<ChartFlag> flags;
  std::vector<ChartStage> stages; // several: told apart on the x axis; one: its steps are
  Format format = Format::number;
  bool from_zero = false;
  bool may_be_log = false; // a logarithmic axis where the values span more than a decade
};

// Empty where no line has a point.
std::string chart_html(const Chart& chart);

// A small curve without axes, for a table.
std::string sparkline(const std::vector<double>& values);

} // namespace fvlm::report
