// Parameter groups: which of them each parameter belongs to, and which a stage trains.
#pragma once
#include "model/parameters.h"
#include "recipe/plan.h"

#include <string>
#include <string_view>
#include <vector>

namespace fvlm::train {

// A parameter's name in the model directory: "connector.q_static" for the model's own "q_static".
std::string directory_name(const std::string& parameter);

// The group of a parameter by its name in the model directory: the recipe's own groups go before connector, vision and
// decoder. Throws Error(recipe) where two patterns match it.
std::string group_of(const plan::Model& model, const std::string& name);

bool trains(const plan::Stage& stage, const std::string& group);

struct Group {
  std::string name;
  bool trained = false;
  std::vector<ops::Parameter*> parameters;
  int64_t elements() const;
};

// Every group of the model, those that the stage leaves alone included, in the Plan's order. Throws Error(recipe) for a
// group whose patterns match nothing.
std::vector<Group> groups_of(const plan::Model& model, const plan::Stage& stage, model::Parameters& parameters);

} // namespace fvlm::train
