// cuda_gelu.cuh: the normal distribution in float, for gelu (the one with erf) and its derivative.
#pragma once

#include <cmath>

namespace fvlm::plugins {

// Where the result is rounded to 16 bits anyway, exp and division by the fast units will do.
template <class Element>
inline constexpr bool fast = sizeof(Element) == 2;

template <class Element>
__device__ float exponential(float x) {
  return fast<Element> ? __expf(x) : expf(x);
}

// The normal distribution's density and its integral up to x.
struct Normal {
  float density, below;
};

template <class Element>
__device__ Normal normal(float x) {
  constexpr float root_half = 0.70710678118654752f, peak = 0.39894228040143268f;
  const float bell = exponential<Element>(-0.5f * x * x);
  float erf;
  if constexpr (fast<Element>) {
    // Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most; its exp(-z^2) is the bell.
    const float t = __fdividef(1, fmaf(0.3275911f * root_half, fabsf(x), 1));
    const float polynomial =
        t * fmaf(t, fmaf(t, fmaf(t, fmaf(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f), 0.254829592f);
    erf = copysignf(fmaf(-polynomial, bell, 1), x);
  } else {
    erf = erff(x * root_half);
  }
  return {peak * bell, fmaf(0.5f, erf, 0.5f)};
}

// gelu's derivative. Far out the density is 0, where x may be infinite.
template <class Element>
__device__ float gelu_slope(float x) {
  const Normal at_x = normal<Element>(x);
  return at_x.below + (at_x.density == 0 ? 0.0f : x * at_x.density);
}

} // namespace fvlm::plugins
