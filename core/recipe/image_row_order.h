// Of a model whose images have learned rows besides those of their cells: the rows that a cell has for texts to name.
// Learned rows are the same for all cells.
#pragma once
#include <cstdint>

namespace fvlm {

struct ImageRowOrder {
  static constexpr int64_t own = 0, newline = 1, begin = 2, end = 3, rows_per_cell = 4;
};

} // namespace fvlm
