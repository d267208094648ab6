// gelu.h: the forms of GELU and their derivatives, in float64.
#pragma once

#include <fvlm/kernels.h>

#include <cmath>
#include <cstdint>
#include <utility>

namespace fvlm::testing {

// form: FVLM_QUICK_GELU, FVLM_GELU_TANH, or 0 for the exact one.
inline std::pair<double, double> gelu_at(double v, std::uint32_t form) {
  const bool quick = form == FVLM_QUICK_GELU;
  const double linear = quick ? 1.702 : 2 * std::sqrt(2 / M_PI), cubic = quick ? 0 : 0.044715 * linear,
               open = 1 / (1 + std::exp(-v * (linear + cubic * v * v)));
  if (form) return {v * open, open + v * open * (1 - open) * (linear + 3 * cubic * v * v)};
  const double below = 0.5 * std::erfc(-v / std::sqrt(2.0));
  return {v * below, below + v * std::exp(-v * v / 2) / std::sqrt(2 * M_PI)};
}

} // namespace fvlm::testing
