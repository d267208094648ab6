// newton_schulz.h: orthogonalizes a matrix by Muon's Newton-Schulz iteration.
//
// The iteration of X [small, large] is X <- a X + (b G + c G G) X with G = X X^T. Here it runs on Y = X^T, stored in
// panels of 64 columns: every product then reads its operands in memory order, and G and its polynomial are symmetric.
#pragma once

#include "common/level_table.h"

#include <fvlm/abi.h>

#include <cstdint>

namespace fvlm::plugins {

constexpr std::int64_t panel_width = 64;

// Element (row, column) is at data[(column / 64 * rows + row) * 64 + column % 64]. Columns of padding do not affect the
// result, but must not hold denormal numbers, which are slow.
struct Panels {
  float* data;
  std::int64_t rows, columns;

  std::int64_t count() const { return (columns + panel_width - 1) / panel_width; }
  std::int64_t width(std::int64_t panel) const {
    const std::int64_t remaining = columns - panel * panel_width;
    return remaining < panel_width ? remaining : panel_width;
  }
  float* at(std::int64_t panel, std::int64_t row) const { return data + (panel * rows + row) * panel_width; }
  std::int64_t size() const { return count() * rows * panel_width; }
};

// Panels (p, q) and (q, p) of out = alpha x^T x + beta x; x is symmetric where beta is not 0.
struct GramTask {
  Panels x, out;
  std::int64_t p, q;
  float alpha, beta;
};

// Rows [begin, end) of out = alpha y + y polynomial, where polynomial is symmetric.
struct UpdateTask {
  Panels y, polynomial, out;
  std::int64_t begin, end;
  float alpha;
};

struct NewtonSchulzKernels {
  void (*gram)(const GramTask&);
  void (*update)(const UpdateTask&);
  // to[c * 64 + r] = from[r * 64 + c]; rows of `to` are padded with zeros to whole vectors.
  void (*transpose)(const float* from, std::int64_t rows, std::int64_t columns, float* to);
  double (*sum_of_squares)(const float* tile, std::int64_t rows, std::int64_t columns); // row stride 64, padded with 0
};

struct NewtonSchulzSpace {
  Panels y, next, gram, polynomial;
};

// The result is in space.y.
void newton_schulz(const NewtonSchulzKernels& kernels, const fvlm_host* host, NewtonSchulzSpace& space,
                   const float coefficients[3], int steps);

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(NewtonSchulzKernels, newton_schulz_kernels)
