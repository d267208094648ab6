// fvlm-engine data check: decodes every sample of a recipe once and lists the broken ones.
#pragma once
#include "cli/verb.h"

namespace fvlm::cli {

int data_check(Arguments arguments);

} // namespace fvlm::cli
