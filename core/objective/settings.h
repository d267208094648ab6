// The objectives that a recipe can name, and what the schemas of their settings share.
#pragma once
#include "recipe/objective_term.h"
#include "recipe/schema/containers.h"
#include "recipe/schema/registered.h"

#include <vector>

namespace fvlm::objective {

using Settings = recipe::Alternative<plan::ObjectiveTerm>;

// Those of objectives.inc. A program may add its own before it reads the first recipe.
std::vector<Settings>& all_settings();

recipe::Ref<plan::LossOn> loss_on();

template <class T>
void term_weight(recipe::Record<T>& record) {
  record.field("weight", &T::weight, recipe::number(recipe::above(0)), "Factor on this term in the sum.");
}

} // namespace fvlm::objective
