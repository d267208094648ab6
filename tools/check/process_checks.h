// Rows of every kind about the plugin's effects on its process: leaks, threads, files, signals, settings.
#pragma once
#include "check/context.h"

namespace fvlm::check {

std::vector<Check> process_checks();

// The row that left the floating-point control changed, "" for none. Every row starts with the default control.
std::string& float_mode_left_by();

} // namespace fvlm::check
