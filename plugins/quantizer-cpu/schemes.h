// schemes.h: what distinguishes the schemes int8, int4 and w8a8 (fvlm/quantizer.h): how the codes of a row lie in
// memory, how many input features share a scale, and how that scale is found.
#pragma once

#include "common/cpu_level.h"

#include <fvlm/cpp/number.hpp>

#include <cstdint>

namespace fvlm::plugins {

// Rounds half to even for |x| < 2^22 without SSE4.1's rounding instruction, which plain x86-64 lacks. NaN stays NaN.
FVLM_LOOP float round_half_even(float x) {
  const float magic = 12582912.0f; // 1.5 * 2^23: a sum of this size has no fraction bits
  return (x + magic) - magic;
}

// The scale of weights that are all smaller than the smallest float times the last code is 0, and so are their codes.
FVLM_LOOP float divisor_of(float scale) {
  return scale == 0 ? 1.0f : scale;
}

template <class Element>
FVLM_LOOP float largest_magnitude(const Element* weights, std::int64_t count) {
  std::uint32_t largest = 0; // the bits of |w| have the order of |w|, and NaN is the largest
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = sdk::bit_cast<std::uint32_t>(static_cast<float>(weights[i])) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return sdk::bit_cast<float>(largest);
}

template <class Scheme>
FVLM_LOOP float code_of(float weight, float divisor) {
  const float code = round_half_even(weight / divisor);
  // NaN becomes the least code: its scale is NaN too.
  return code > Scheme::max_code ? Scheme::max_code : code >= Scheme::min_code ? code : Scheme::min_code;
}

struct Int8Scheme {
  static constexpr const char* name = "int8";
  static constexpr int bits = 8;
  static constexpr bool quantizes_activations = false;
  static constexpr float min_code = -127, max_code = 127;
  using Stored = std::int8_t;
  static std::int64_t stored(std::int64_t cols) { return cols; }
  static std::int64_t group(std::int64_t cols) { return cols; }
  static std::int64_t groups(std::int64_t) { return 1; }

  template <class Element>
  FVLM_LOOP static float scale(const Element* weights, const float*, std::int64_t count) {
    return largest_magnitude(weights, count) / 127.0f;
  }
  FVLM_LOOP static float decode(const Stored* row, std::int64_t column) { return static_cast<float>(row[column]); }
  // Columns begin .. begin + count; code(i) is the code of column i.
  template <class Code>
  FVLM_LOOP static void encode(Stored* row, std::int64_t begin, std::int64_t count, const Code& code) {
    for (std::int64_t i = begin; i < begin + count; ++i) row[i] = static_cast<Stored>(code(i));
  }
};

// Weights as int8 has them, and rows of x in 8 bits too.
struct W8A8Scheme : Int8Scheme {
  static constexpr const char* name = "w8a8";
  static constexpr bool quantizes_activations = true;
};

// Two codes a byte, the first in the low bits, each with 8 added. A row has whole 32-bit words.
struct Int4Scheme {
  static constexpr const char* name = "int4";
  static constexpr int bits = 4;
  static constexpr bool quantizes_activations = false;
  static constexpr float min_code = -8, max_code = 7;
  using Stored = std::uint8_t;
  static std::int64_t stored(std::int64_t cols) { return (cols + 7) / 8 * 4; }
  static std::int64_t group(std::int64_t cols) {
    for (const std::int64_t size : {128, 64, 32})
      if (cols % size == 0 && (cols >= 4 * size || size == 32)) return size;
    return cols;
  }
  static std::int64_t groups(std::int64_t cols) { return cols == 0 ? 0 : cols / group(cols); }

  // Searches the divisor of the largest magnitude: clipping it shortens the steps of all other weights.
  template <class Element>
  FVLM_LOOP static float scale(const Element* weights, const float* importance, std::int64_t count) {
    const float largest = largest_magnitude(weights, count);
    float best = largest / 7.0f, least = 0;
    for (int candidate = 0; candidate <= 12; ++candidate) {
      const float divisor = 7.0f + 0.25f * static_cast<float>(candidate), scale = largest / divisor;
      // In units of the largest magnitude, so that no square overflows.
      const float error = squared_error(weights, importance, count, divisor_of(scale)) / (divisor * divisor);
      if (candidate > 0 && !(error < least)) continue;
      least = error;
      best = scale;
    }
    return best;
  }
  FVLM_LOOP static float decode(const Stored* row, std::int64_t column) {
    return static_cast<float>((row[column / 2] >> (column % 2 * 4)) & 15) - 8.0f;
  }
  // `begin` is even, and `count` too unless the row ends there.
  template <class Code>
  FVLM_LOOP static void encode(Stored* row, std::int64_t begin, std::int64_t count, const Code& code) {
    const auto nibble = [&](std::int64_t column) { return static_cast<int>(code(column)) + 8; };
    for (std::int64_t i = begin; i + 1 < begin + count; i += 2)
      row[i / 2] = static_cast<Stored>(nibble(i) | nibble(i + 1) << 4);
    if (count % 2) row[(begin + count) / 2] = static_cast<Stored>(nibble(begin + count - 1));
  }

 private:
  // Sixteen partial sums, which the compiler keeps in vectors and every instruction set adds in the same order.
  template <class Element>
  FVLM_LOOP static float squared_error(const Element* weights, const float* importance, std::int64_t count,
                                       float divisor) {
    constexpr int parts = 16;
    float sums[parts] = {};
    const auto add = [&](float& sum, std::int64_t i) {
      const float exact = static_cast<float>(weights[i]) / divisor,
                  off = exact - code_of<Int4Scheme>(static_cast<float>(weights[i]), divisor);
      sum += off * off * (importance ? importance[i] : 1.0f);
    };
    std::int64_t i = 0;
    for (; i + parts <= count; i += parts)
      for (int part = 0; part < parts; ++part) add(sums[part], i + part);
    for (; i < count; ++i) add(sums[i % parts], i);
    float sum = 0;
    for (float part : sums) sum += part;
    return sum;
  }
};

} // namespace fvlm::plugins
