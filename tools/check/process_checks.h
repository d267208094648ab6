// Rows about what a plugin does to the process that it is a part of, for every kind.
#pragma once
#include "check/context.h"

namespace fvlm::check {

std::vector<Check> process_checks();

// What changed the floating-point control and left it so, "" for nothing: rows are run with the usual one.
std::string& float_mode_left_by();

} // namespace fvlm::check
