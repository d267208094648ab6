// newton_schulz.h: a matrix to the nearest semi-orthogonal one, by the polynomial iteration that Muon uses.
//
// The iteration of X [small, large] is X <- a X + (b G + c G G) X with G = X X^T. Here it runs on Y = X^T, kept in
// panels of 64 columns: every product then reads its operands as they lie, and G and its polynomial are symmetric.
#pragma once

#include "common/level_table.h"

#include <fvlm/abi.h>

#include <cstdint>

namespace fvlm::plugins {

constexpr std::int64_t panel_width = 64;

// Element (row, column) at data[(column / 64 * rows + row) * 64 + column % 64]. Columns beyond the last are never used,
// but should hold small numbers: denormal ones are slow.
struct Panels {
  float* data;
  std::int64_t rows, columns;

  std::int64_t count() const { return (columns + panel_width - 1) / panel_width; }
  std::int64_t width(std::int64_t panel) const {
    const std::int64_t rest = columns - panel * panel_width;
    return rest < panel_width ? rest : panel_width;
  }
  float* at(std::int64_t panel, std::int64_t row) const { return data + (panel * rows + row) * panel_width; }
  std::int64_t size() const { return count() * rows * panel_width; }
};

// out(p, q) = alpha of^T of + beta of, and its mirror image; of is symmetric where beta is not 0.
struct GramTask {
  Panels of, out;
  std::int64_t p, q;
  float alpha, beta;
};

// Rows [begin, end) of out = alpha y + y by, by symmetric.
struct UpdateTask {
  Panels y, by, out;
  std::int64_t begin, end;
  float alpha;
};

struct NewtonSchulzKernels {
  void (*gram)(const GramTask&);
  void (*update)(const UpdateTask&);
  // to[c * 64 + r] = from[r * 64 + c]; rows are rounded up to whole vectors with zeros.
  void (*transpose)(const float* from, std::int64_t rows, std::int64_t columns, float* to);
  double (*sum_of_squares)(const float* tile, std::int64_t rows, std::int64_t columns); // row stride 64, padded with 0
};

struct NewtonSchulzSpace {
  Panels y, other, gram, polynomial;
};

// Leaves the result in space.y.
void newton_schulz(const NewtonSchulzKernels& kernels, const fvlm_host* host, NewtonSchulzSpace& space,
                   const float coefficients[3], int steps);

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(NewtonSchulzKernels, newton_schulz_kernels)
