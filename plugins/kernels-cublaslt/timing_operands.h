// timing_operands.h: sets of operands that a linear's products are timed on, in the workspace of prepare().
#pragma once
#include "common/cublaslt.h"

#include <algorithm>
#include <cstdint>

namespace fvlm::plugins {

struct TimingOperands {
  struct Set {
    Matrix x, y, weight;
    void* bias;
  };

  // Bytes of one set at most, and of all sets together, which have to be well above the L2.
  static constexpr std::int64_t max_set_bytes = 320 << 20, max_bytes = 96 << 20, max_sets = 24;
  static constexpr std::int64_t row_unit = 128; // granularity when rows are cut to fit

  std::int64_t rows = 0;                                      // 0: too few to measure anything
  std::int64_t x = 0, y = 0, weight = 0, bias = 0, count = 0; // bytes of each operand, and the number of sets
  std::int64_t inner = 0, width = 0;
  char* memory = nullptr;

  explicit TimingOperands(const fvlm_kernels_query& query) : inner(query.inner), width(query.width) {
    const auto padded = [](std::int64_t size) { return (size + 255) / 256 * 256; };
    const std::int64_t element = query.dtype.bits / 8, widest = query.options & FVLM_WITH_BACKWARD ? 4 : element;
    weight = padded(width * inner * widest);
    bias = padded(std::max(inner, width) * widest); // or the column sums of an input gradient
    const std::int64_t room = (max_set_bytes - weight - bias) / ((inner + width) * element);
    rows = room >= query.rows ? query.rows : room < row_unit ? 0 : room / row_unit * row_unit;
    x = padded(rows * inner * element);
    y = padded(rows * width * element);
    count = rows == 0 ? 0 : std::clamp<std::int64_t>(max_bytes / set_bytes(), 1, max_sets);
  }

  std::int64_t set_bytes() const { return x + y + weight + bias; }
  std::int64_t bytes() const { return count * set_bytes(); }
  Set set(int repeat) const {
    char* at_x = memory + repeat % count * set_bytes();
    char *at_y = at_x + x, *at_weight = at_y + y;
    return {{at_x, inner}, {at_y, width}, {at_weight, inner}, at_weight + weight};
  }
};

} // namespace fvlm::plugins
