// linear_support.h: which linears this plugin computes.
#pragma once
#include <fvlm/fvlm.hpp>

namespace fvlm::plugins {

// Checks all but the device, which supports() checks before it. Every call checks this, too.
sdk::Support fits(const fvlm_kernels_query& query);

} // namespace fvlm::plugins
