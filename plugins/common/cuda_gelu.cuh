// cuda_gelu.cuh: exact GELU (with erf) and its approximations by a sigmoid, with their derivatives, computed in
// float32.
#pragma once

#include "common/cuda_math.cuh"
#include "common/gelu_form.h"

#include <fvlm/cuda.hpp>

#include <cmath>
#include <type_traits>

namespace fvlm::plugins {

// Results that are rounded to 16 bits allow the fast approximations of exp and division.
template <class Element>
inline constexpr bool uses_fast_math = sizeof(Element) == 2;

template <class Element>
__device__ float sigmoid(float x) {
  return uses_fast_math<Element> ? reciprocal_approx(1 + exp2_approx(x * -log2_e)) : 1 / (1 + expf(-x));
}

// For 16-bit results: the normal CDF at -a is approximated by 2^p(a), and GELU's derivative at -a by (root - a) 2^q(a),
// with polynomials p and q (both exponents are nearly parabolas). One exp2 each, which matters because power limits
// these kernels (bench/LOG.md, 2026-11-23, "gelu on products").
namespace tail_fit {

constexpr float root = 0.75179152f, far = 8; // beyond `far` both are nearly 0

// min(|x|, far) that propagates NaN.
__device__ inline float clamped_abs(float x) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(fabsf(x)), "f"(far));
  return result;
}

template <int size>
__device__ float exp2_polynomial(const float (&coefficients)[size], float a) {
  float exponent = coefficients[size - 1];
#pragma unroll
  for (int i = size - 2; i >= 0; --i) exponent = fmaf(exponent, a, coefficients[i]);
  return exp2_approx(exponent);
}

// Relative error up to a = 4: at most 1.4e-4 for bfloat16 and 3.3e-6 for half.
template <class Element>
__device__ float normal_cdf(float a) {
  if constexpr (std::is_same_v<Element, sdk::BFloat16>) {
    constexpr float p[] = {-1.00019264f, -1.14822984f, -0.466059864f, -0.046875447f, 0.00544328569f, -0.000283099449f};
    return exp2_polynomial(p, a);
  } else {
    constexpr float p[] = {-0.999996185f,  -1.15122843f,     -0.458553463f,   -0.0538331531f,
                           0.00842420012f, -0.000902836677f, 5.71396668e-05f, -1.5570472e-06f};
    return exp2_polynomial(p, a);
  }
}

// Relative error at most 1.5e-5.
__device__ inline float derivative_tail(float a) {
  constexpr float q[] = {-0.588422596f, -0.382729143f,   -0.562603474f,   -0.0518094227f,
                         0.012512356f,  -0.00203660317f, 0.000194712076f, -8.13998668e-06f};
  return (root - a) * exp2_polynomial(q, a);
}

} // namespace tail_fit

template <class Element>
__device__ float gelu(float x) {
  if constexpr (uses_fast_math<Element>) {
    const float a = tail_fit::clamped_abs(x);
    return fmaf(-a, tail_fit::normal_cdf<Element>(a), fmaxf(x, 0));
  } else {
    constexpr float root_half = 0.70710678118654752f;
    return fmaf(fabsf(x), 0.5f * erff(fabsf(x) * root_half), 0.5f * x);
  }
}

// The derivative of GELU, accurate enough to be summed over many rows.
template <class Element>
__device__ float gelu_derivative(float x) {
  constexpr float root_half = 0.70710678118654752f, peak_of_normal = 0.39894228040143268f;
  const float a = fabsf(x), clamped_abs = fminf(a, 1e4f); // for large |x|, which may be infinite, the density is 0
  float density, inside; // of the normal distribution: the density divided by its peak, and the mass between 0 and a
  if constexpr (uses_fast_math<Element>) {
    // Abramowitz and Stegun 7.1.26, halved; error at most 1.5e-7. Its exp(-z^2) is the density.
    constexpr float half_log2_e = 0.72134752044448170f;
    density = exp2_approx(x * x * -half_log2_e);
    const float t = reciprocal_approx(fmaf(0.3275911f * root_half, a, 1));
    const float outside =
        fmaf(t, fmaf(t, fmaf(t, fmaf(t, 0.5307027145f, -0.7265760135f), 0.7107068705f), -0.142248368f), 0.127414796f) *
        t;
    inside = fmaf(-outside, density, 0.5f);
  } else {
    density = expf(-0.5f * x * x), inside = 0.5f * erff(a * root_half);
  }
  return 0.5f + copysignf(fmaf(peak_of_normal * clamped_abs, density, inside), x);
}

// For 16-bit results, with fewer instructions. Its relative error of 1.5e-5 does not average out in sums over many
// rows.
__device__ inline float fast_gelu_derivative(float x) {
  return 0.5f + copysignf(0.5f - tail_fit::derivative_tail(tail_fit::clamped_abs(x)), x);
}

// The forms of GELU, for kernels that have a choice.
struct ExactGelu {
  template <class Element>
  __device__ float value(float x) const {
    return gelu<Element>(x);
  }
  template <class Element>
  __device__ float derivative(float x) const {
    return gelu_derivative<Element>(x);
  }
};

// x sigmoid(linear x + cubic x^3)
struct SigmoidGelu {
  float linear, cubic;

  template <class Element>
  __device__ float value(float x) const {
    const float a = clamped(x);
    return x * sigmoid<Element>(a * fmaf(cubic * a, a, linear));
  }
  template <class Element>
  __device__ float derivative(float x) const {
    const float a = clamped(x), open = sigmoid<Element>(a * fmaf(cubic * a, a, linear));
    return open + a * open * (1 - open) * fmaf(3 * cubic * a, a, linear);
  }

 private:
  // Beyond these the sigmoid is 0 or 1, and powers of x could overflow. Propagates NaN.
  __device__ static float clamped(float x) {
    constexpr float far = 100;
    return x > far ? far : x < -far ? -far : x;
  }
};

template <class Form>
__device__ Form kernel_form(const GeluForm& form) {
  if constexpr (std::is_same_v<Form, SigmoidGelu>)
    return {form.linear, form.cubic};
  else
    return {};
}

} // namespace fvlm::plugins
