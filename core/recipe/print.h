// A Plan for people: a summary, every value with where it came from, what differs between two.
#pragma once
#include "recipe/freeze.h"
#include "recipe/resolve.h"

#include <string>

namespace fvlm::recipe {

// What the author set and what matters of each stage, in a page; how many defaults were filled in. (summary.cpp)
std::string summary_text(const Resolved& resolved, int width);

// One line a value: path, value, and where it was written: "default" and "derived" where nobody did.
std::string all_values_text(const Resolved& resolved);

// "align 31,250 steps -> instruct 31,250 steps -> prefer 2,594 steps"
std::string stages_text(const plan::Plan& plan);

// A table of path, left and right; empty for none.
std::string differences_text(const std::vector<Difference>& differences, const std::string& left,
                             const std::string& right);

// A JSON value as a reader of a table wants it: no quotes, lists with commas, long curves drawn.
std::string value_text(const Json& value);

// "1,000 samples", "3 epochs".
std::string length_text(const plan::Stage& stage);

std::string padded(const std::string& text, size_t columns); // with blanks, to so many columns

} // namespace fvlm::recipe
