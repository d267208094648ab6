#include "train/groups.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <fnmatch.h>

namespace fvlm::train {

std::string directory_name(const std::string& parameter) {
  return parameter.starts_with("vision.") || parameter.starts_with("decoder.") ? parameter : "connector." + parameter;
}

std::string group_of(const plan::Model& model, const std::string& name) {
  std::string found;
  for (const auto& [group, patterns] : model.groups) {
    const bool matches = std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    });
    if (!matches) continue;
    if (!found.empty())
      throw Error(ErrorKind::recipe, fmt::format("{} belongs to two groups: {} and {}", name, found, group))
          .at("model.groups")
          .advise("narrow the patterns of one of them");
    found = group;
  }
  return found.empty() ? name.substr(0, name.find('.')) : found;
}

bool trains(const plan::Stage& stage, const std::string& group) {
  return std::find(stage.freeze.begin(), stage.freeze.end(), group) == stage.freeze.end();
}

int64_t Group::elements() const {
  int64_t sum = 0;
  for (const ops::Parameter* parameter : parameters) sum += parameter->value.numel();
  return sum;
}

std::vector<Group> groups_of(const plan::Model& model, const plan::Stage& stage, model::Parameters& parameters) {
  std::vector<Group> groups;
  for (const std::string& name : plan::parameter_groups(model)) groups.push_back({name, trains(stage, name), {}});
  for (ops::Parameter& parameter : parameters.all()) {
    const std::string name = group_of(model, directory_name(parameter.name));
    std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.name == name;
    })->parameters.push_back(&parameter);
  }
  for (const Group& group : groups)
    if (group.parameters.empty() && model.groups.contains(group.name))
      throw Error(ErrorKind::recipe, "no parameter of the model matches the patterns of this group")
          .at("model.groups." + group.name)
          .advise("`fvlm-engine plan` and the safetensors files of the towers show the names");
  return groups;
}

} // namespace fvlm::train
