// linear_support.h: which linears this plugin computes.
#pragma once
#include <fvlm/fvlm.hpp>

namespace fvlm::plugins {

// Checks all but the device, which supports() checks before it. Every call checks this, too.
sdk::Support fits(const fvlm_kernels_query& query);

// What was measured of one of its products, on so many rows.
void log_timing(const fvlm_call& call, const fvlm_kernels_query& query, const char* what, std::int64_t rows,
                const char* report);

} // namespace fvlm::plugins
