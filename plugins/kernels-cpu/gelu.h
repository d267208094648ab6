// gelu.h: SiLU and the forms of GELU, by vectors.
#pragma once

#include "common/vector_math.h"

namespace fvlm::plugins::FVLM_LEVEL {

// x sigmoid(x): what x is multiplied by, and its derivative.
struct Silu {
  FVLM_INLINE Vector factor(Vector x) const { return sigmoid(x); }
  FVLM_INLINE Vector derivative(Vector x) const {
    const Vector open = sigmoid(x);
    return fma(x * open, 1.0f - open, open);
  }
};

// GELU with erf: what x is multiplied by, and its derivative.
struct ExactGelu {
  FVLM_INLINE Vector factor(Vector x) const { return normal_cdf(x); }
  FVLM_INLINE Vector derivative(Vector x) const {
    const Vector density = exp(x * x * -0.5f) * 0.398942280401432678f;
    return fma(x, density, normal_cdf(x));
  }
};

// x sigmoid(linear x + cubic x^3)
struct SigmoidGelu {
  float linear, cubic;
  // Beyond 100 the sigmoid is 0 or 1, and powers of x could overflow.
  FVLM_INLINE static Vector clamped(Vector x) { return minimum(splat(100.0f), maximum(splat(-100.0f), x)); }
  FVLM_INLINE Vector factor(Vector value) const {
    const Vector x = clamped(value);
    return sigmoid(x * (x * x * cubic + linear));
  }
  FVLM_INLINE Vector derivative(Vector value) const {
    const Vector x = clamped(value), s = factor(x);
    return fma(x * s * (1.0f - s), x * x * (3.0f * cubic) + linear, s);
  }
};

} // namespace fvlm::plugins::FVLM_LEVEL
