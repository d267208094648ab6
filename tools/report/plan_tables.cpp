// The Plan's values, each with the place where it was written.
#include "report/chart.h"
#include "report/html.h"
#include "report/sections.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::report {
namespace {

struct Group {
  std::string name;
  std::vector<std::pair<std::string, const PlanValue*>> values; // path within the group
};

// "stages.align.batch.samples" -> "stage align", "batch.samples"; what stands at the top of the Plan is "the run".
std::pair<std::string, std::string> placed(const std::string& path) {
  size_t dot = path.find_first_of(".[");
  if (dot == path.npos) return {"the run", path};
  std::string first = path.substr(0, dot), rest = path.substr(path[dot] == '.' ? dot + 1 : dot);
  if (first != "stages") return {first, rest};
  size_t next = rest.find('.', rest.starts_with('[') ? rest.find(']') : 0);
  if (next == rest.npos) return {"stage " + rest, ""};
  return {"stage " + rest.substr(0, next), rest.substr(next + 1)};
}

std::string row(const std::string& path, const PlanValue& value) {
  bool written = !value.source.empty();
  std::string drawn = value.curve.empty() ? "" : sparkline(value.curve);
  return fmt::format(
      R"(<tr class="{}"><th class="text">{}</th><td class="text long">{}{}</td><td class="text from">{}</td></tr>)",
      written ? "" : "default", escaped(path), drawn, escaped(value.value),
      written ? escaped(value.source) : "default");
}

} // namespace

std::string plan_tables(const PageInput& input) {
  std::vector<Group> groups;
  for (const auto& value : input.plan) {
    const auto place = placed(value.path);
    const std::string &name = place.first, &path = place.second;
    auto group = std::ranges::find_if(groups, [&](const auto& other) { return other.name == name; });
    if (group == groups.end()) {
      groups.push_back({name, {}});
      group = groups.end() - 1;
    }
    group->values.emplace_back(path, &value);
  }
  std::string out;
  for (const auto& group : groups) {
    std::string rows;
    auto written = std::ranges::count_if(group.values, [](const auto& value) { return !value.second->source.empty(); });
    for (const auto& [path, value] : group.values) rows += row(path, *value);
    out += fmt::format(
        R"(<details class="{}"><summary><b>{}</b><span>{} of {} written</span></summary><div class="wide"><table class="plan"><tbody>{}</tbody></table></div></details>
)",
        written > 0 ? "" : "untouched", escaped(group.name), written, group.values.size(), rows);
  }
  return out;
}

} // namespace fvlm::report
