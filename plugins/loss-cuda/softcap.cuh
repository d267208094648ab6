// softcap.cuh: bounded logits, bound * tanh(logit / bound), computed in float32.
#pragma once

#include "softcap.h"

#include <cmath>

namespace fvlm::plugins {

// With one exponential and one reciprocal: tanh(x) = 1 - 2 / (1 + exp(2x)). The error is below 5e-7 of the bound.
__device__ inline float bound_fast(const Softcap& softcap, float logit) {
  float exponential, part; // part: (1 - tanh) / 2
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(exponential) : "f"(logit * softcap.rate));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(1 + exponential));
  return fmaf(-2 * softcap.bound, part, softcap.bound);
}

// The derivative of the bounded logit by the logit: 1 - tanh^2.
__device__ inline float slope_of(const Softcap& softcap, float bounded) {
  constexpr float two_log2_e = 2 * 1.44269504088896340736f;
  const float tangent = bounded * softcap.rate * (1 / two_log2_e);
  return fmaf(-tangent, tangent, 1);
}

} // namespace fvlm::plugins
