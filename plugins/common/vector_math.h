// vector_math.h: exponentials over Vector. Errors were measured over the whole range against float64
// (plugins/common/test): exp2 1.1 ulp, exp 1.3 ulp.
#pragma once

#include "common/simd.h"

namespace fvlm::plugins::FVLM_LEVEL {

// 2^x. Below -126 it is 0, above 127.999 infinity; a NaN stays one.
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
  // The exponent's bits are made by a shift of the sum's low bits, in two halves so that 2^128 does not overflow early.
  const Vector scale = (Vector)((((Integers)shifted) - 0x4b400000 + 126) << 23);
  const Vector r = x > 127.9999f ? splat(__builtin_inff()) : p * scale * 2.0f;
  return x < -126.0f ? zero() : r;
#endif
}

// e^x
FVLM_INLINE Vector exp(Vector x) {
  const Vector magic = splat(12582912.0f);
  const Vector log2e = splat(1.44269504088896341f);
  const Vector bounded = maximum(splat(-88.0f), x);
  const Vector shifted = fma(bounded, log2e, magic);
  const Vector n = shifted - magic;
  // ln 2 in two parts, so that x - n ln 2 keeps its low bits
  Vector f = fma(n, splat(-0.693359375f), bounded);
  f = fma(n, splat(2.12194440e-4f), f);
  Vector p = splat(1.9875691500e-4f);
  p = fma(p, f, splat(1.3981999507e-3f));
  p = fma(p, f, splat(8.3334519073e-3f));
  p = fma(p, f, splat(4.1665795894e-2f));
  p = fma(p, f, splat(1.6666665459e-1f));
  p = fma(p, f, splat(5.0000001201e-1f));
  p = fma(p * f, f, f + 1.0f);
#if defined(__AVX512F__)
  const __mmask16 gone = _mm512_cmp_ps_mask((__m512)x, (__m512)splat(-87.3f), _CMP_LT_OQ);
  return (Vector)_mm512_maskz_scalef_ps(static_cast<__mmask16>(~gone), (__m512)p, (__m512)n);
#else
  const Vector scale = (Vector)((((Integers)shifted) - 0x4b400000 + 126) << 23);
  const Vector r = x > 88.72284f ? splat(__builtin_inff()) : p * scale * 2.0f;
  return x < -87.3f ? zero() : r;
#endif
}

} // namespace fvlm::plugins::FVLM_LEVEL
