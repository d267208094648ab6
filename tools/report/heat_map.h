// Renders an attention map as an image to overlay on the frame: one pixel per cell, more transparent where attention is
// higher.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fvlm::report {

// A PNG of rows x columns pixels. `shares` are attention weights, row by row, on a square-root scale from 0 to
// `max_share`.
std::string heat_map_png(const std::vector<double>& shares, int64_t rows, int64_t columns, double max_share);

} // namespace fvlm::report
