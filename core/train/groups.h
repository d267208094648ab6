// Parameter groups: which of them each parameter belongs to, and which a stage trains.
#pragma once
#include "budget/parameter_groups.h"
#include "model/parameters.h"

#include <string>
#include <vector>

namespace fvlm::train {

using budget::directory_name;
using budget::group_of;
using budget::trains;

std::vector<std::string> directory_names(const model::Parameters& parameters);

struct Group {
  std::string name;
  bool trained = false;
  std::vector<ops::Parameter*> parameters;
};

// Every group of the model, those that the stage leaves alone included, in the Plan's order. Throws Error(recipe) for a
// group whose patterns match nothing.
std::vector<Group> groups_of(const plan::Model& model, const plan::Stage& stage, model::Parameters& parameters);

} // namespace fvlm::train
