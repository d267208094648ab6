// cuda_math.cuh: exponentials by powers of two, and what the special function units approximate.
#pragma once

namespace fvlm::plugins {

inline constexpr float log2_e = 1.44269504088896340736f, ln_2 = 0.693147180559945309417f;

// Results below 2^-126 count as zero.
__device__ inline float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ inline float reciprocal_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

} // namespace fvlm::plugins
