// vector_math.h: vectorized exponentials, sigmoid, normal CDF, sine and cosine. The errors given are the worst of all
// instruction sets, measured against float64 (plugins/common/test).
#pragma once

#include "common/simd.h"

namespace fvlm::plugins::FVLM_LEVEL {

// 2^x for x <= 127; 0 below -126; propagates NaN. Error 1.2 ulp.
FVLM_INLINE Vector exp2(Vector x) {
  const Vector magic = splat(12582912.0f); // 1.5 * 2^23: adding it rounds to the nearest integer
  const Vector bounded = maximum(splat(-127.0f), x);
  const Vector shifted = bounded + magic;
  const Vector f = bounded - (shifted - magic);
  Vector p = splat(1.534580750e-04f);
  p = fma(p, f, splat(1.339993118e-03f));
  p = fma(p, f, splat(9.618488974e-03f));
  p = fma(p, f, splat(5.550328777e-02f));
  p = fma(p, f, splat(2.402264689e-01f));
  p = fma(p, f, splat(6.931472057e-01f));
  p = fma(p, f, splat(1.0f));
#if defined(__AVX512F__)
  const __mmask16 gone = _mm512_cmp_ps_mask((__m512)x, (__m512)splat(-126.0f), _CMP_LT_OQ);
  const __mmask16 kept = static_cast<__mmask16>(~gone);
  return (Vector)_mm512_maskz_scalef_ps(kept, (__m512)p, (__m512)(shifted - magic));
#else
  const Vector scale = (Vector)((((Integers)shifted) - 0x4b400000 + 127) << 23);
  return x < -126.0f ? zero() : p * scale;
#endif
}

// e^x; 0 below -86.6; propagates NaN. Error 1.3 ulp.
FVLM_INLINE Vector exp(Vector x) {
  const Vector magic = splat(12582912.0f);
  const Vector log2e = splat(1.44269504088896341f);
  const Vector bounded = minimum(splat(89.0f), maximum(splat(-88.0f), x));
  const Vector shifted = fma(bounded, log2e, magic);
  const Vector n = shifted - magic;
  // ln 2 in two parts, the first with few enough bits that n times it is exact, so x - n ln 2 keeps its low bits
  Vector f = fma(n, splat(-0.693115234375f), bounded);
  f = fma(n, splat(-3.194618495e-05f), f);
  // (e^f - 1 - f) / f^2, fitted for the least relative error of e^f
  Vector p = splat(1.381446724e-03f);
  p = fma(p, f, splat(8.368780836e-03f));
  p = fma(p, f, splat(4.166839272e-02f));
  p = fma(p, f, splat(1.666651964e-01f));
  p = fma(p, f, splat(4.999999404e-01f));
  p = fma(p * f, f, f + 1.0f);
#if defined(__AVX512F__)
  const __mmask16 gone = _mm512_cmp_ps_mask((__m512)x, (__m512)splat(-86.6f), _CMP_LT_OQ);
  return (Vector)_mm512_maskz_scalef_ps(static_cast<__mmask16>(~gone), (__m512)p, (__m512)n);
#else
  // 2^n from its exponent bits. 2^128 has none, so half of it is computed and doubled.
  const Vector scale = (Vector)((((Integers)shifted) - 0x4b400000 + 126) << 23);
  const Vector r = x > 88.72284f ? splat(__builtin_inff()) : p * scale * 2.0f;
  return x < -86.6f ? zero() : r;
#endif
}

// tanh x; propagates NaN. Error 2 ulp.
FVLM_INLINE Vector tanh(Vector x) {
  const Vector square = x * x, magnitude = maximum(x, -x);
  // (tanh x - x) / x^3 by powers of x^2, for |x| < 0.625
  Vector p = splat(-5.70498872745e-03f);
  p = fma(p, square, splat(2.06390887954e-02f));
  p = fma(p, square, splat(-5.37397155531e-02f));
  p = fma(p, square, splat(1.33314422036e-01f));
  p = fma(p, square, splat(-3.33332819422e-01f));
  const Vector near_zero = fma(p * square, x, x);
  const Vector decay = exp(magnitude * -2.0f);
  const Vector large = (1.0f - decay) / (1.0f + decay);
  return magnitude < 0.625f ? near_zero : x < 0.0f ? -large : large;
}

// The standard normal CDF, (1 + erf(x / sqrt 2)) / 2; propagates NaN. The exponent of the lower tail 2^P(|x|) / 2 is
// nearly a parabola: P is fitted to log2(erfc(|x| / sqrt 2)) on 0 to 5.5 for the least error of the tail, and keeps
// decreasing beyond. Absolute error 1.1e-7.
FVLM_INLINE Vector normal_cdf(Vector x) {
  const Vector distance = x < 0.0f ? -x : x;
  Vector p = splat(-1.853837557e-06f);
  p = fma(p, distance, splat(2.894511157e-05f));
  p = fma(p, distance, splat(-1.428975306e-04f));
  p = fma(p, distance, splat(-2.264069954e-04f));
  p = fma(p, distance, splat(7.160905407e-03f));
  p = fma(p, distance, splat(-5.255051178e-02f));
  p = fma(p, distance, splat(-4.591945095e-01f));
  p = fma(p, distance, splat(-1.151106313e+00f));
  const Vector tail = exp2(p * distance) * 0.5f;
  return x < 0.0f ? tail : 1.0f - tail;
}

// 1 / (1 + e^-x). Error 3.1 ulp; below -88.7 it is 0.
FVLM_INLINE Vector sigmoid(Vector x) {
  return 1.0f / (1.0f + exp(-x));
}

// sine and cosine of `quarters` quarter turns plus a fraction `f` of one, |f| <= 1/2. Absolute error 1e-7.
FVLM_INLINE void sin_cos(Vector f, Integers quarters, Vector& sine, Vector& cosine) {
  const Vector x = f * 1.57079632679489662f, x2 = x * x;
  Vector s = splat(2.755731922e-6f);
  s = fma(s, x2, splat(-1.984126984e-4f));
  s = fma(s, x2, splat(8.333333333e-3f));
  s = fma(s, x2, splat(-1.666666667e-1f));
  s = fma(s * x2, x, x);
  Vector c = splat(2.480158730e-5f);
  c = fma(c, x2, splat(-1.388888889e-3f));
  c = fma(c, x2, splat(4.166666667e-2f));
  c = fma(c, x2, splat(-0.5f));
  c = fma(c, x2, splat(1.0f));
  const Vector a = (quarters & 1) != 0 ? c : s, b = (quarters & 1) != 0 ? s : c;
  sine = (quarters & 2) != 0 ? -a : a;
  cosine = ((quarters + 1) & 2) != 0 ? -b : b;
}

} // namespace fvlm::plugins::FVLM_LEVEL
