// Prints a Plan: as a summary, as all values with their origins, or as differences to another Plan.
#pragma once
#include "recipe/freeze.h"
#include "recipe/resolve.h"

#include <string>
#include <vector>

namespace fvlm::recipe {

// A page with what the author set, a summary of each stage, and the number of defaults (summary.cpp). `images`: what is
// known of the sizes that the encoder reads; empty: nothing.
std::string summary_text(const Resolved& resolved, int width, const std::vector<std::string>& images);

// One line per value: path, value, and where it was written, or "default" or "derived".
std::string all_values_text(const Resolved& resolved);

// "align 31,250 steps -> instruct 31,250 steps -> prefer 2,594 steps"
std::string stages_text(const plan::Plan& plan);

// A table with the columns path, left and right. Empty where there are no differences.
std::string differences_text(const std::vector<Difference>& differences, const std::string& left,
                             const std::string& right);

// A JSON value for a table cell: no quotes, lists with commas, long curves as sparklines.
std::string value_text(const Json& value);

// "1,000 samples", "3 epochs".
std::string length_text(const plan::Stage& stage);

std::string padded(const std::string& text, size_t columns); // with spaces, to this width

} // namespace fvlm::recipe
