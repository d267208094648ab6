// freeze() turns the Value tree of a recipe into a Plan. Also: a Plan as JSON, its hash, and the differences of two
// Plans.
#pragma once
#include "recipe/plan.h"
#include "recipe/schema/record.h"

#include <functional>
#include <string>
#include <vector>

namespace fvlm::recipe {

// Reads a Value tree (of a recipe, or from_json of a plan file). `reader` then holds the mistakes and where each value
// was written. The Plan is valid only without mistakes. `read_model_directory`: see Request in resolve.h.
plan::Plan freeze(Value recipe, const std::vector<std::string>& sets, Reader& reader,
                  const std::function<void(plan::Model&)>& read_model_directory = {});

// The Plan as JSON, in declared order and without absent values: equal Plans give equal bytes.
Json plan_json(const plan::Plan& plan);
std::string plan_hash(const plan::Plan& plan);

// The path, value and declaring field of each value of a Plan, in declared order.
struct Leaf {
  std::string path;
  Json value;
  const FieldInfo* field;
};
std::vector<Leaf> plan_leaves(const plan::Plan& plan);

// A difference between two Plans. A value that one of them does not have is null.
struct Difference {
  std::string path;
  Json left, right;
};
std::vector<Difference> differences(const plan::Plan& left, const plan::Plan& right);

// Reads the return value of a `control` function. Throws RecipeError.
std::vector<plan::Action> read_actions(const Value& answer);

} // namespace fvlm::recipe
