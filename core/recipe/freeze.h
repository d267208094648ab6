// freeze(): from the Value tree of a recipe to the Plan; and from the Plan to JSON, a hash and a list of differences.
#pragma once
#include "recipe/plan.h"
#include "recipe/schema/record.h"

#include <string>
#include <vector>

namespace fvlm::recipe {

// Reads a Value tree (of a recipe, or from_json of a plan file). `reader` then knows what was wrong and where each
// value was written; the Plan holds when there were no mistakes.
plan::Plan freeze(Value recipe, const std::vector<std::string>& sets, Reader& reader);

// The Plan as JSON: declared order, no value that is absent, the same bytes for the same Plan.
Json plan_json(const plan::Plan& plan);
std::string plan_hash(const plan::Plan& plan);

// The path, value and declaring field of each value of a Plan, in declared order.
struct Leaf {
  std::string path;
  Json value;
  const FieldInfo* field;
};
std::vector<Leaf> plan_leaves(const plan::Plan& plan);

// What differs between two Plans, in declared order. A value that one of them lacks is null there.
struct Difference {
  std::string path;
  Json left, right;
};
std::vector<Difference> differences(const plan::Plan& left, const plan::Plan& right);

// What a `control` function answered. Throws RecipeError.
std::vector<plan::Action> read_actions(const Value& answer);

} // namespace fvlm::recipe
