// gelu_form.h: the form of GELU that a query's options name.
#pragma once

#include <fvlm/kernels.h>

#include <cstdint>

namespace fvlm::plugins {

inline constexpr std::uint32_t gelu_forms = FVLM_QUICK_GELU | FVLM_GELU_TANH;

struct GeluForm {
  bool exact = true; // with erf; else x sigmoid(linear x + cubic x^3)
  float linear = 0, cubic = 0;
};

inline GeluForm gelu_form_of(std::uint32_t options) {
  if (options & FVLM_QUICK_GELU) return {false, 1.702f, 0};
  if (options & FVLM_GELU_TANH)
    return {false, 1.5957691216057308f, 0.0713548162726f}; // 2 sqrt(2 / pi), 0.044715 times that
  return {};
}

} // namespace fvlm::plugins
