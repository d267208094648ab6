// linear_support.h: which linears this plugin computes.
#pragma once
#include <fvlm/fvlm.hpp>

namespace fvlm::plugins {

// Whatever the device: supports() asks that before, and every call asks this again.
sdk::Support fits(const fvlm_kernels_query& query);

} // namespace fvlm::plugins
