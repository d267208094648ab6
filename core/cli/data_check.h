// fvlm-engine data check: every sample of a recipe, read and decoded once.
#pragma once
#include "cli/verb.h"

namespace fvlm::cli {

int data_check(Arguments arguments);

} // namespace fvlm::cli
