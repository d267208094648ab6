#include "recipe/print.h"

#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::recipe {
namespace {

std::string steps_of(const plan::Stage& stage) {
  return stage.steps ? fmt::format("{} steps", grouped(*stage.steps)) : length_text(stage);
}

// A sparkline of many points, scaled from their minimum to their maximum.
std::string sparkline(const std::vector<double>& points) {
  static constexpr const char* bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr size_t columns = 24;
  auto [min, max] = std::minmax_element(points.begin(), points.end());
  std::string out = fmt::format("{} ", shortest(points.front()));
  for (size_t c = 0; c < columns; ++c) {
    double point = points[c * (points.size() - 1) / (columns - 1)];
    double height = *max > *min ? (point - *min) / (*max - *min) : 0.5;
    out += bars[std::min<size_t>(7, static_cast<size_t>(height * 8))];
  }
  return out + fmt::format(" {} ({} points from {} to {})", shortest(points.back()), points.size(), shortest(*min),
                           shortest(*max));
}

} // namespace

std::string length_text(const plan::Stage& stage) {
  const std::string samples = fmt::format("{} samples", grouped(stage.samples));
  if (!stage.epochs) return samples;
  const std::string epochs = fmt::format("{} epoch{}", grouped(*stage.epochs), *stage.epochs == 1 ? "" : "s");
  return stage.samples > 0 ? fmt::format("{}, at most {}", samples, epochs) : epochs;
}

std::string padded(const std::string& text, size_t columns) {
  size_t width = display_width(text);
  return width < columns ? text + std::string(columns - width, ' ') : text;
}

std::string value_text(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    bool plain = std::ranges::none_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7F; });
    return plain && !text.empty() ? text : value.dump();
  }
  if (value.is_array() && value.size() > 8 && value[0].is_number()) return sparkline(value.get<std::vector<double>>());
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const auto& item : value) parts.push_back(value_text(item));
    return parts.empty() ? "none" : join(parts, ", ");
  }
  if (value.is_number_integer()) return value.dump();
  return as_lua(value);
}

std::string all_values_text(const Resolved& resolved) {
  constexpr size_t max_width = 48; // of the value column; a longer value only shifts its own line
  struct Row {
    std::string path, value, from;
  };
  std::vector<Row> rows;
  size_t paths = 0, values = 0;
  for (const auto& leaf : plan_leaves(resolved.plan)) {
    auto source = resolved.sources.find(leaf.path);
    std::string from = source != resolved.sources.end()    ? source->second
                       : leaf.field && leaf.field->derived ? "derived"
                                                           : "default";
    rows.push_back({leaf.path, value_text(leaf.value), from});
    paths = std::max(paths, display_width(leaf.path));
    if (size_t width = display_width(rows.back().value); width <= max_width) values = std::max(values, width);
  }
  std::string out;
  for (const auto& row : rows)
    out += fmt::format("{}  {}  {}\n", padded(row.path, paths), padded(row.value, values),
                       styled(row.from, row.from == "default" ? Style::dim : Style::cyan));
  return out;
}

std::string stages_text(const plan::Plan& plan) {
  std::vector<std::string> stages;
  for (const auto& stage : plan.stages) stages.push_back(fmt::format("{} {}", stage.name, steps_of(stage)));
  return join(stages, " -> ");
}

std::string differences_text(const std::vector<Difference>& differences, const std::string& left,
                             const std::string& right) {
  if (differences.empty()) return "";
  TextTable table({"path", left, right});
  for (const auto& difference : differences)
    table.row({difference.path, value_text(difference.left), value_text(difference.right)});
  return table.text();
}

} // namespace fvlm::recipe
