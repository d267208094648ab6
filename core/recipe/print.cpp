#include "recipe/print.h"

#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::recipe {
namespace {

struct Row {
  std::string name, value, source; // no source: a default
  bool derived;
};

struct Section {
  std::string title, note;
  std::vector<Row> rows;
};

std::string grouped(int64_t number) {
  if (number < 1000) return std::to_string(number);
  return fmt::format("{},{:03}", grouped(number / 1000), number % 1000);
}

std::string steps_of(const plan::Stage& stage) {
  return stage.steps ? fmt::format("{} steps", grouped(*stage.steps))
                     : fmt::format("{} samples", grouped(stage.samples));
}

// Many points in one line: bars from the least to the most.
std::string drawn(const std::vector<double>& points) {
  static constexpr const char* bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr size_t columns = 24;
  auto [least, most] = std::minmax_element(points.begin(), points.end());
  std::string out = fmt::format("{} ", shortest(points.front()));
  for (size_t c = 0; c < columns; ++c) {
    double point = points[c * (points.size() - 1) / (columns - 1)];
    double height = *most > *least ? (point - *least) / (*most - *least) : 0.5;
    out += bars[std::min<size_t>(7, static_cast<size_t>(height * 8))];
  }
  return out + fmt::format(" {} ({} points from {} to {})", shortest(points.back()), points.size(), shortest(*least),
                           shortest(*most));
}

bool is_empty(const Json& value) {
  return ((value.is_array() || value.is_object()) && value.empty()) ||
         (value.is_string() && value.get<std::string>().empty());
}

std::string stage_note(const plan::Stage& stage) {
  std::string from = stage.from == "model"                       ? "the model's weights"
                     : stage.from.find('/') == std::string::npos ? fmt::format("stage {}", stage.from)
                                                                 : stage.from;
  std::string note = fmt::format("{} samples", grouped(stage.samples));
  if (stage.steps) note += fmt::format(" in {} steps", grouped(*stage.steps));
  if (stage.warmup_steps.value_or(0) > 0) note += fmt::format(", {} of them warm-up", grouped(*stage.warmup_steps));
  return note + ", from " + from;
}

std::vector<Section> sections_of(const Resolved& resolved) {
  std::vector<Section> sections{{"run", "", {}}};
  auto section = [&](const std::string& title) -> Section& {
    if (sections.back().title != title) sections.push_back({title, "", {}});
    return sections.back();
  };
  std::map<std::string, const plan::Stage*> stages;
  for (const auto& stage : resolved.plan.stages) stages["stages" + key_part(stage.name)] = &stage;
  std::vector<Leaf> leaves = plan_leaves(resolved.plan);
  // The run's own values lie between its sections; they are shown together.
  std::stable_partition(leaves.begin(), leaves.end(),
                        [](const Leaf& leaf) { return leaf.path.find_first_of(".[") == std::string::npos; });
  for (const auto& leaf : leaves) {
    auto source = resolved.sources.find(leaf.path);
    bool written = source != resolved.sources.end();
    if (!written && is_empty(leaf.value)) continue;
    bool derived = leaf.field && leaf.field->derived;
    size_t end = leaf.path.find_first_of(".[");
    std::string title = end == std::string::npos ? "run" : leaf.path.substr(0, end);
    if (title == "stages") end = leaf.path.find_first_of(".[", end + 1), title = leaf.path.substr(0, end);
    Section& into = section(title);
    if (auto stage = stages.find(title); stage != stages.end()) into.note = stage_note(*stage->second);
    std::string name = end == std::string::npos ? leaf.path : leaf.path.substr(end + (leaf.path[end] == '.'));
    into.rows.push_back({name, value_text(leaf.value), written ? source->second : "", derived});
  }
  return sections;
}

std::string wrapped(const std::vector<std::string>& parts, size_t indent, size_t width) {
  std::string out, line(indent, ' ');
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string part = parts[i] + (i + 1 < parts.size() ? "," : "");
    if (display_width(line) > indent && display_width(line) + 1 + display_width(part) > width) {
      out += styled(line, Style::dim) + '\n';
      line.assign(indent, ' ');
    }
    if (display_width(line) > indent) line += ' ';
    line += part;
  }
  return out + styled(line, Style::dim) + '\n';
}

std::string padded(const std::string& text, size_t columns) {
  size_t width = display_width(text);
  return width < columns ? text + std::string(columns - width, ' ') : text;
}

std::string section_text(const Section& section, size_t width) {
  std::string title =
      section.title.starts_with("stages") ? fmt::format("stage {}", section.title.substr(7)) : section.title;
  std::string out = styled(title, Style::bold) + (section.note.empty() ? "\n" : fmt::format("  {}\n", section.note));
  constexpr size_t most_value = 48;
  size_t names = 0, values = 0;
  std::vector<std::string> defaults;
  for (const auto& row : section.rows) {
    if (row.derived) continue; // told in the note
    if (row.source.empty()) {
      defaults.push_back(row.name + " " + row.value);
      continue;
    }
    names = std::max(names, display_width(row.name));
    values = std::max(values, std::min(most_value, display_width(row.value)));
  }
  for (const auto& row : section.rows)
    if (!row.source.empty())
      out += fmt::format("  {}  {}  {}\n", padded(row.name, names), padded(row.value, values),
                         styled(row.source, Style::dim));
  if (!defaults.empty()) {
    defaults[0] = fmt::format("default: {}", defaults[0]);
    out += wrapped(defaults, 2, width);
  }
  return out + '\n';
}

} // namespace

std::string value_text(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() && value.size() > 8 && value[0].is_number()) return drawn(value.get<std::vector<double>>());
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const auto& item : value) parts.push_back(value_text(item));
    return parts.empty() ? "none" : join(parts, ", ");
  }
  if (value.is_number_integer()) return value.dump();
  return as_lua(value);
}

std::string plan_text(const Resolved& resolved, int width) {
  std::string out = fmt::format("{}  plan {}  {}\n", styled(resolved.plan.name, Style::bold),
                                resolved.hash.substr(0, 12), styled(resolved.recipe, Style::dim));
  out += stages_text(resolved.plan) + "\n\n";
  for (const auto& section : sections_of(resolved))
    out += section_text(section, static_cast<size_t>(std::max(width, 40)));
  out.pop_back();
  return out;
}

std::string provenance_text(const Resolved& resolved) {
  TextTable table({"path", "value", "from"});
  for (const auto& leaf : plan_leaves(resolved.plan)) {
    auto source = resolved.sources.find(leaf.path);
    std::string from = source != resolved.sources.end()    ? source->second
                       : leaf.field && leaf.field->derived ? "derived"
                                                           : "default";
    table.row({leaf.path, value_text(leaf.value), from});
  }
  return table.text();
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
