// fvlm-engine data convert: writes samples of any form to tar shards.
#pragma once
#include "cli/verb.h"

namespace fvlm::cli {

int data_convert(Arguments arguments);

} // namespace fvlm::cli
