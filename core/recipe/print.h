// A Plan for people: by sections, with where each value came from.
#pragma once
#include "recipe/freeze.h"
#include "recipe/resolve.h"

#include <string>

namespace fvlm::recipe {

// Each section's own values with where they were written, then its defaults in one dimmed paragraph.
std::string plan_text(const Resolved& resolved, int width);

// One line a value: path, value, source.
std::string provenance_text(const Resolved& resolved);

// "align 31,250 steps -> instruct 31,250 steps -> prefer 2,594 steps"
std::string stages_text(const plan::Plan& plan);

// A table of path, left and right; empty for none.
std::string differences_text(const std::vector<Difference>& differences, const std::string& left,
                             const std::string& right);

// A JSON value as a reader of a table wants it: no quotes, lists with commas, long curves drawn.
std::string value_text(const Json& value);

} // namespace fvlm::recipe
