#include "budget/parameter_groups.h"

#include <algorithm>
#include <fnmatch.h>
#include <utility>

namespace fvlm::budget {

std::optional<double> number_of(const plan::ByGroup& numbers, const std::string& group) {
  auto found = numbers.find(group);
  if (found == numbers.end()) found = numbers.find("default");
  return found == numbers.end() ? std::nullopt : std::optional(found->second);
}

std::string directory_name(const std::string& parameter) {
  // No connector has parameters that begin with "decoder".
  return parameter.starts_with("vision.") || parameter.starts_with("decoder") ? parameter : "connector." + parameter;
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

std::vector<std::string> parameter_names(const ModelDescription& description) {
  std::vector<std::string> names;
  for (const ModelPart& part : description.parts)
    for (const TensorSpec& spec : description.layout(part).tensors)
      if (spec.parameter) names.push_back(part.name + "." + spec.name);
  return names;
}

void require_matches(const std::vector<std::string>& skip, const std::vector<std::string>& names, ErrorKind kind,
                     const char* written_as) {
  for (const std::string& pattern : skip) {
    const auto matches = [&](const std::string& name) { return is_skipped(pattern, name); };
    if (matches("decoder.lm_head.weight") || std::ranges::any_of(names, matches)) continue;
    throw Error(kind, "{} {}: no module of the model matches", written_as, pattern)
        .advise("the names of modules begin with that of a part: {}, for example",
                names.back().substr(0, names.back().rfind('.')));
  }
}

bool is_quantized(const plan::Quantization& quantization, const std::string& name, std::span<const int64_t> shape) {
  return (is_packable(name, shape) || (!quantization.head.empty() && is_packable_head(name, shape))) &&
         std::ranges::none_of(quantization.skip, [&](const std::string& pattern) { return is_skipped(pattern, name); });
}

void refuse_empty_group(const std::string& group) {
  throw Error(ErrorKind::recipe, "no parameter of the model matches the patterns of this group")
      .at("model.groups." + group)
      .advise("`fvlm-engine plan` and the safetensors files of the towers show the names");
}

std::vector<GroupLine> group_lines(const plan::Model& model, const plan::Stage& stage,
                                   const ModelDescription& described) {
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
