#include "check/report.h"

#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"

#include <algorithm>

namespace fvlm::check {
namespace {

std::string number(double value) {
  if (value == 0) return "0";
  return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

// "0.412 ms", "1.5 GiB", "98.2 %"
std::string quantity(double value, const std::string& unit) {
  if (unit == "bytes") return human_bytes(static_cast<uint64_t>(std::max(value, 0.0)));
  if (unit == "s") {
    if (value >= 1) return number(value) + " s";
    return value >= 1e-3 ? number(value * 1e3) + " ms" : number(value * 1e6) + " us";
  }
  return number(value) + " " + unit;
}

std::string cell(double value, const std::string& unit) {
  return value > 0 ? quantity(value, unit) : "-";
}

std::string ratio(double plugin, double reference) {
  return plugin > 0 && reference > 0 ? fmt::format("{:.2f}x", reference / plugin) : "-";
}

} // namespace

const char* state_name(State state) {
  return state == State::ok ? "ok" : state == State::failed ? "failed" : "not applicable";
}

size_t Report::count(State state) const {
  return static_cast<size_t>(
      std::ranges::count_if(entries, [&](const Entry& entry) { return entry.outcome.state == state; }));
}

nlohmann::json Report::json() const {
  nlohmann::json checks = nlohmann::json::array(), measured = nlohmann::json::array();
  for (const Entry& entry : entries)
    checks.push_back({{"name", entry.name},
                      {"proves", entry.proves},
                      {"result", state_name(entry.outcome.state)},
                      {"text", entry.outcome.text},
                      {"seconds", entry.seconds}});
  for (const Measurement& figure : figures) {
    nlohmann::json one{{"name", figure.name}, {"unit", figure.unit}, {"plugin", figure.plugin}};
    if (figure.reference > 0) {
      one["reference"] = figure.reference;
      one["ratio"] = figure.reference / figure.plugin;
    }
    if (figure.plugin_cpu > 0) one["plugin_cpu"] = figure.plugin_cpu;
    if (figure.reference_cpu > 0) {
      one["reference_cpu"] = figure.reference_cpu;
      one["ratio_cpu"] = figure.reference_cpu / figure.plugin_cpu;
    }
    measured.push_back(one);
  }
  return {{"plugin", plugin},
          {"version", version},
          {"library", library},
          {"device", device},
          {"kinds", kinds},
          {"checks", checks},
          {"figures", measured},
          {"ok", count(State::ok)},
          {"failed", count(State::failed)},
          {"not_applicable", count(State::not_applicable)},
          {"passed", passed()}};
}

std::string line_of(const Entry& entry) {
  constexpr size_t columns = 34;
  std::string name = entry.name;
  if (name.size() < columns) name.resize(columns, ' ');
  switch (entry.outcome.state) {
  case State::ok:
    return fmt::format("{}  {} {}\n", styled("ok    ", Style::green), name, styled(entry.proves, Style::dim));
  case State::failed:
    return fmt::format("{}  {} {}\n        {}\n", styled("failed", Style::red), styled(name, Style::bold), entry.proves,
                       entry.outcome.text);
  default:
    return fmt::format("{}  {} {}\n", styled("-     ", Style::dim), name, styled(entry.outcome.text, Style::dim));
  }
}

std::string Report::summary() const {
  std::string text;
  if (!figures.empty()) {
    TextTable table({"measured", "plugin", "reference", "ratio", "CPU, one thread", "reference", "ratio"});
    for (const Measurement& figure : figures)
      table.row({figure.name, quantity(figure.plugin, figure.unit), cell(figure.reference, figure.unit),
                 ratio(figure.plugin, figure.reference), cell(figure.plugin_cpu, figure.unit),
                 cell(figure.reference_cpu, figure.unit), ratio(figure.plugin_cpu, figure.reference_cpu)});
    text += '\n';
    text += table.text();
  }
  const size_t bad = count(State::failed);
  std::string verdict = bad == 0 ? styled("passed", Style::green) : styled(fmt::format("{} failed", bad), Style::red);
  if (bad == 0 && count(State::ok) == 0) verdict = styled("nothing could be checked", Style::yellow);
  text += fmt::format("\n{}{}: {}, {} ok, {} not applicable (of {} checks)\n", plugin.empty() ? library : plugin,
                      version.empty() ? "" : " " + version, verdict, count(State::ok), count(State::not_applicable),
                      entries.size());
  return text;
}

} // namespace fvlm::check
