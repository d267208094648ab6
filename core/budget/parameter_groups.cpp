#include "budget/parameter_groups.h"

#include <algorithm>
#include <charconv>
#include <fnmatch.h>
#include <map>
#include <string_view>
#include <utility>

namespace fvlm::budget {
namespace {

// The number that the text begins with as a component of its own: 11 of "11.self_attn.q_proj.weight".
std::optional<uint64_t> leading_number(std::string_view text) {
  text = text.substr(0, text.find('.'));
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

// Prefixes of names that the pattern matches and that a number follows, with the count of what is numbered there:
// "decoder.model.layers." with 30.
std::map<std::string, uint64_t> numbered_modules(const std::string& pattern, const std::vector<std::string>& names) {
  std::map<std::string, uint64_t> counts;
  for (const std::string& name : names)
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      const auto number = leading_number(std::string_view(name).substr(dot + 1));
      const std::string before = name.substr(0, dot + 1);
      if (!number || fnmatch(pattern.c_str(), before.c_str(), 0) != 0) continue;
      uint64_t& count = counts[before];
      count = std::max(count, *number + 1);
    }
  return counts;
}

// What with_indices() makes of one pattern.
std::vector<std::string> with_index(const std::string& pattern, const std::vector<std::string>& names) {
  for (size_t dot = pattern.find(".-"); dot != std::string::npos; dot = pattern.find(".-", dot + 1)) {
    const auto from_end = leading_number(std::string_view(pattern).substr(dot + 2));
    if (from_end.value_or(0) == 0) continue;
    std::vector<std::string> resolved;
    const size_t behind = std::min(pattern.find('.', dot + 1), pattern.size());
    for (const auto& [before, count] : numbered_modules(pattern.substr(0, dot + 1), names))
      if (*from_end <= count) resolved.push_back(before + std::to_string(count - *from_end) + pattern.substr(behind));
    return resolved;
  }
  return {pattern};
}

} // namespace

std::optional<double> number_of(const plan::ByGroup& numbers, const std::string& group) {
  auto found = numbers.find(group);
  if (found == numbers.end()) found = numbers.find("default");
  return found == numbers.end() ? std::nullopt : std::optional(found->second);
}

std::string directory_name(const std::string& parameter) {
  // No connector has parameters that begin with "decoder".
  return parameter.starts_with("vision.") || parameter.starts_with("decoder") ? parameter : "connector." + parameter;
}

std::vector<std::string> parameter_names(const ModelDescription& description) {
  std::vector<std::string> names;
  for (const ModelPart& part : description.parts)
    for (const TensorSpec& spec : description.layout(part).tensors)
      if (spec.parameter) names.push_back(part.name + "." + spec.name);
  return names;
}

std::vector<std::string> with_indices(const std::vector<std::string>& patterns, const std::vector<std::string>& names) {
  std::vector<std::string> resolved;
  for (const std::string& pattern : patterns)
    for (std::string& each : with_index(pattern, names)) resolved.push_back(std::move(each));
  return resolved;
}

plan::Model with_indices(plan::Model model, const std::vector<std::string>& names) {
  for (auto& [group, patterns] : model.groups) patterns = with_indices(patterns, names);
  return model;
}

plan::Quantization with_indices(plan::Quantization quantization, const std::vector<std::string>& names) {
  quantization.skip = with_indices(quantization.skip, names);
  return quantization;
}

std::string group_of(const plan::Model& model, const std::string& name) {
  std::string found;
  for (const auto& [group, patterns] : model.groups) {
    const bool matches = std::ranges::any_of(
        patterns, [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
    if (!matches) continue;
    if (!found.empty())
      throw Error(ErrorKind::recipe, "{} belongs to two groups: {} and {}", name, found, group)
          .at("model.groups")
          .advise("narrow the patterns of one of them");
    found = group;
  }
  return found.empty() ? name.substr(0, name.find('.')) : found;
}

bool trains(const plan::Stage& stage, const std::string& group) {
  return std::ranges::find(stage.freeze, group) == stage.freeze.end();
}

bool is_of_others(const plan::Optimizer& optimizer, const std::string& group, const std::string& name,
                  std::span<const int64_t> shape) {
  const auto* muon = std::get_if<plan::Muon>(&optimizer);
  if (!muon) return false;
  const bool in_layer = name.find(".layer.") != std::string::npos || name.find(".layers.") != std::string::npos;
  return !(muon->updates(group) && in_layer && shape.size() == 2);
}

double base_rate(const plan::Optimizer& optimizer, const std::string& group, bool of_others) {
  const auto rate =
      number_of(of_others ? std::get<plan::Muon>(optimizer).others.lr : plan::common(optimizer).lr, group);
  if (!rate) throw Error(ErrorKind::recipe, "the optimizer has no learning rate for the group '{}'", group);
  return *rate;
}

bool is_skipped(const std::string& pattern, const std::string& name) {
  const std::string module = name.substr(0, name.rfind('.'));
  return fnmatch(pattern.c_str(), module.c_str(), 0) == 0 || fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

void require_matches(const std::vector<std::string>& skip, const std::vector<std::string>& names, ErrorKind kind,
                     const char* written_as) {
  for (const std::string& pattern : skip) {
    const auto resolved = with_index(pattern, names);
    const auto matches = [&](const std::string& name) {
      return std::ranges::any_of(resolved, [&](const std::string& each) { return is_skipped(each, name); });
    };
    if (matches("decoder.lm_head.weight") || std::ranges::any_of(names, matches)) continue;
    throw Error(kind, "{} {}: no module of the model matches", written_as, pattern)
        .advise("the names of modules begin with that of a part: {}, for example",
                names.back().substr(0, names.back().rfind('.')));
  }
}

bool is_quantized(const plan::Quantization& quantization, const std::string& name, std::span<const int64_t> shape) {
  const PackedScheme* scheme = find_packed_scheme(quantization.scheme);
  if (scheme && scheme->quantizes_activations && is_of_expert(name)) return false;
  return (is_packable(name, shape) || (!quantization.head.empty() && is_packable_head(name, shape))) &&
         std::ranges::none_of(quantization.skip, [&](const std::string& pattern) { return is_skipped(pattern, name); });
}

void refuse_empty_group(const std::string& group) {
  throw Error(ErrorKind::recipe, "no parameter of the model matches the patterns of this group")
      .at("model.groups." + group)
      .advise("`fvlm-engine plan` and the safetensors files of the towers show the names");
}

std::vector<GroupLine> group_lines(const plan::Model& planned, const plan::Stage& stage,
                                   const ModelDescription& described) {
  const plan::Model model = with_indices(planned, parameter_names(described));
  std::vector<GroupLine> lines;
  for (const std::string& name : plan::parameter_groups(model)) {
    GroupLine& line = lines.emplace_back();
    line.name = name;
    line.trained = trains(stage, name);
    if (line.trained) line.weight_decay = number_of(plan::common(stage.optimizer).weight_decay, name);
  }
  const auto add = [&](GroupLine& line, const TensorSpec& spec) {
    ++line.tensors;
    line.parameters += elements_of(spec.shape);
  };
  const auto add_to_group = [&](const std::string& name, const TensorSpec& spec) {
    GroupLine& line = *std::ranges::find(lines, group_of(model, name), &GroupLine::name);
    add(line, spec);
    if (!line.trained) return;
    const bool others = is_of_others(stage.optimizer, line.name, name, spec.shape);
    (others ? line.others_lr : line.lr) = base_rate(stage.optimizer, line.name, others);
  };
  std::vector<GroupLine> bases; // frozen weights below adapters
  for (const ModelPart& part : described.parts) {
    const WeightLayout layout = described.layout(part);
    GroupLine base{.name = part.name + " (base)"};
    for (const TensorSpec& spec : layout.tensors) {
      if (!spec.parameter || spec.is_fixed || (part.adapter && part.adapter->saves(spec.name))) continue;
      if (part.adapter)
        add(base, spec);
      else
        add_to_group(part.name + "." + spec.name, spec);
    }
    if (!part.adapter) continue;
    bases.push_back(base);
    for (const TensorSpec& spec : adapter_layout(*part.adapter, layout).tensors)
      add_to_group(part.name + "." + spec.name, spec);
  }
  for (GroupLine& line : lines)
    if (!line.lr) line.lr = std::exchange(line.others_lr, {});
  lines.insert(lines.end(), bases.begin(), bases.end());
  for (const GroupLine& line : lines)
    if (line.tensors == 0 && model.groups.contains(line.name)) refuse_empty_group(line.name);
  std::erase_if(lines, [](const GroupLine& line) { return line.tensors == 0; });
  return lines;
}

} // namespace fvlm::budget
