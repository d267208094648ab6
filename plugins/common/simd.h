// simd.h: one float vector type, whatever the instruction set of this translation unit.
//
// A file that includes this is compiled once for each level (levels.cmake), into the namespace
// fvlm::plugins::FVLM_LEVEL. It must not call a function of the standard library that the compiler may emit out of
// line: the linker would keep one copy for all variants, perhaps one with instructions that the machine lacks.
#pragma once

#ifndef FVLM_LEVEL
#error "compile this file through fvlm_level_objects() of plugins/common/levels.cmake"
#endif

#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define FVLM_INLINE [[gnu::always_inline]] inline

namespace fvlm::plugins::FVLM_LEVEL {

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX2__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif

typedef float Vector __attribute__((vector_size(lanes * 4)));
typedef int32_t Integers __attribute__((vector_size(lanes * 4)));
typedef uint32_t Words __attribute__((vector_size(lanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(lanes * 2)));

struct Bfloat {
  uint16_t bits;
};

FVLM_INLINE Vector splat(float value) {
#if defined(__AVX512F__)
  return (Vector)_mm512_set1_ps(value);
#elif defined(__AVX2__)
  return (Vector)_mm256_set1_ps(value);
#else
  return Vector{value, value, value, value};
#endif
}

FVLM_INLINE Vector zero() {
  return Vector{};
}

FVLM_INLINE Vector load(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

FVLM_INLINE void store(float* to, Vector v) {
  std::memcpy(to, &v, sizeof v);
}

FVLM_INLINE Vector load(const Bfloat* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return (Vector)(__builtin_convertvector(halves, Words) << 16);
}

// Rounds to nearest even; propagates NaN.
FVLM_INLINE void store(Bfloat* to, Vector v) {
  const Words bits = (Words)v;
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words quiet = (bits >> 16) | 0x40;
  const Words word = (bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded;
  const Halves halves = __builtin_convertvector(word, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

FVLM_INLINE Bfloat to_bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

FVLM_INLINE float to_float(float value) {
  return value;
}
FVLM_INLINE float to_float(Bfloat value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// Loads the first `count` elements (1 to lanes) and fills up with zeros.
template <class Element>
FVLM_INLINE Vector load_part(const Element* from, int64_t count) {
  Element buffer[lanes] = {};
  for (int i = 0; i < lanes; ++i)
    if (i < count) buffer[i] = from[i];
  return load(buffer);
}

template <class Element>
FVLM_INLINE void store_part(Element* to, Vector v, int64_t count) {
  Element buffer[lanes];
  store(buffer, v);
  for (int i = 0; i < lanes; ++i)
    if (i < count) to[i] = buffer[i];
}

#if defined(__AVX512F__)
FVLM_INLINE Vector load_part(const float* from, int64_t count) {
  return (Vector)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
}
FVLM_INLINE void store_part(float* to, Vector v, int64_t count) {
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)v);
}
#endif

FVLM_INLINE Vector fma(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// a if it is larger, else b. If either is NaN the result is b.
FVLM_INLINE Vector maximum(Vector a, Vector b) {
#if defined(__AVX512F__)
  return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vector)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

// a if it is smaller, else b. If either is NaN the result is b.
FVLM_INLINE Vector minimum(Vector a, Vector b) {
#if defined(__AVX512F__)
  return (Vector)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vector)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

FVLM_INLINE float sum(Vector v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#elif defined(__AVX2__)
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

FVLM_INLINE float largest(Vector v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#elif defined(__AVX2__)
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
  const float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
  return a > b ? a : b;
#endif
}

// 0, 1, 2, ... lanes - 1
FVLM_INLINE Integers iota() {
  Integers v;
  for (int i = 0; i < lanes; ++i) v[i] = i;
  return v;
}

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

} // namespace fvlm::plugins::FVLM_LEVEL
