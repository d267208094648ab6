// The objectives that a recipe can name, and what the schemas of their settings share.
#pragma once
#include "recipe/objective_term.h"
#include "recipe/schema/containers.h"
#include "recipe/schema/registered.h"
#include "recipe/schema/values.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

namespace fvlm::objective {

using Settings = recipe::Alternative<plan::ObjectiveTerm>;

// Those of objectives.inc. A program may add its own before it reads the first recipe.
std::vector<Settings>& all_settings();

recipe::Ref<plan::LossOn> loss_on();

// The keys of a LabelTerm.
template <class T>
void label_fields(recipe::Record<T>& record) {
  using namespace recipe;
  record.field("on", &T::on, loss_on(), "Which labels.")
      .field("first", &T::first, optional(curve(at_least(1))),
             "Only the first N labels of each span. May be a function of the stage's progress, whose values are "
             "rounded; `first.TERM` in the metrics then says where it is.")
      .unit("tokens")
      .example("{ 1, 4 }")
      .field(
          "position_weights", &T::position_weights, optional(list(number(at_least(0)), {.min = 1})),
          "Weights of the first, second, ... label of each span; further labels have the last weight. The term is the "
          "weighted mean. Default: all labels count alike.")
      .example("{ 4, 2, 1 }");
  record.check([](Reader& reader, const T& term) {
    if (term.first && term.first->is_constant() && term.first->points[0] != std::floor(term.first->points[0]))
      reader.report_at(".first", fmt::format("{} is no number of labels", term.first->points[0]),
                       "write a whole number, or a function of the stage's progress");
  });
}

template <class T>
void term_weight(recipe::Record<T>& record) {
  record
      .field("weight", &T::weight, recipe::curve(recipe::at_least(0)),
             "Factor on this term in the sum. May be a function of the stage's progress.")
      .example("function(progress) return math.max(1, 8 - 20 * progress) end");
}

} // namespace fvlm::objective
