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

// The normal distribution: its density is peak * bell; inside is its integral from 0 to |x|.
constexpr float peak_of_normal = 0.39894228040143268f;
struct Normal {
  float bell, inside;
};

template <class Element>
__device__ Normal normal(float x) {
  constexpr float root_half = 0.70710678118654752f, half_log2_e = 0.72134752044448170f;
  if constexpr (fast<Element>) {
    // Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most, and halved; its exp(-z^2) is the bell.
    float bell, t;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(bell) : "f"(x * x * -half_log2_e));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(0.3275911f * root_half, fabsf(x), 1)));
    const float outside =
        fmaf(t, fmaf(t, fmaf(t, fmaf(t, 0.5307027145f, -0.7265760135f), 0.7107068705f), -0.142248368f), 0.127414796f) *
        t;
    return {bell, fmaf(-outside, bell, 0.5f)};
  } else {
    return {expf(-0.5f * x * x), 0.5f * erff(fabsf(x) * root_half)};
  }
}

template <class Element>
__device__ float gelu(float x) {
  return fmaf(fabsf(x), normal<Element>(x).inside, 0.5f * x);
}

// gelu's derivative. Far out the bell is 0, where x may be infinite.
template <class Element>
__device__ float gelu_slope(float x) {
  const Normal at_x = normal<Element>(x);
  const float near = fminf(fabsf(x), 1e4f);
  return 0.5f + copysignf(fmaf(peak_of_normal * near, at_x.bell, at_x.inside), x);
}

} // namespace fvlm::plugins
