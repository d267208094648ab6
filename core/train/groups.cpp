#include "train/groups.h"

#include <algorithm>

namespace fvlm::train {

std::vector<std::string> directory_names(const model::Parameters& parameters) {
  std::vector<std::string> names;
  for (const ops::Parameter& parameter : parameters.all()) names.push_back(directory_name(parameter.name));
  return names;
}

std::vector<Group> groups_of(const plan::Model& planned, const plan::Stage& stage, model::Parameters& parameters) {
  const plan::Model model = budget::with_indices(planned, directory_names(parameters));
  std::vector<Group> groups;
  for (const std::string& name : plan::parameter_groups(model)) groups.push_back({name, trains(stage, name), {}});
  for (ops::Parameter& parameter : parameters.all()) {
    if (parameter.in_base) continue;
    const std::string name = group_of(model, directory_name(parameter.name));
    Group& group = *std::ranges::find(groups, name, &Group::name);
    if (group.trained && !parameter.gradient.defined()) continue; // a fixed one: see TensorSpec
    group.parameters.push_back(&parameter);
  }
  for (const Group& group : groups)
    if (group.parameters.empty() && model.groups.contains(group.name)) budget::refuse_empty_group(group.name);
  return groups;
}

} // namespace fvlm::train
