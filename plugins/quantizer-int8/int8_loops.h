// int8_loops.h: quantizes and dequantizes a row of weights: scale = max |w| / 127, code = w / scale rounded
// half to even.
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

template <class Element>
FVLM_LOOP float scale_of_row(const Element* row, std::int64_t count) {
  std::uint32_t largest = 0; // the bits of |w| have the order of |w|, and NaN is the largest
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = sdk::bit_cast<std::uint32_t>(static_cast<float>(row[i])) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return sdk::bit_cast<float>(largest) / 127.0f;
}

// The scale of a row whose largest weight is less than 127 times the smallest float is 0, and so are its codes.
FVLM_LOOP float divisor_of(float scale) {
  return scale == 0 ? 1.0f : scale;
}

FVLM_LOOP float code_of(float weight, float divisor) {
  const float code = round_half_even(weight / divisor);
  return code > 127.0f ? 127.0f : code >= -127.0f ? code : -127.0f; // NaN becomes -127 too: its scale is NaN
}

template <class Element>
struct QuantizeRow {
  struct Arguments {
    const Element* weight;
    std::int64_t count;
    std::int8_t* codes;
    float* scale;
  };
  FVLM_LOOP static void run(const Arguments& a) {
    const float scale = scale_of_row(a.weight, a.count), divisor = divisor_of(scale);
    for (std::int64_t i = 0; i < a.count; ++i) {
      a.codes[i] = static_cast<std::int8_t>(code_of(static_cast<float>(a.weight[i]), divisor));
    }
    *a.scale = scale;
  }
};

template <class Element>
struct DequantizeRow {
  struct Arguments {
    const std::int8_t* codes;
    std::int64_t count;
    float scale;
    Element* weight;
  };
  FVLM_LOOP static void run(const Arguments& a) {
    for (std::int64_t i = 0; i < a.count; ++i) a.weight[i] = Element(static_cast<float>(a.codes[i]) * a.scale);
  }
};

template <class Element>
struct FakeQuantizeRow {
  struct Arguments {
    const Element* weight;
    std::int64_t count;
    Element* out;
  };
  FVLM_LOOP static void run(const Arguments& a) {
    const float scale = scale_of_row(a.weight, a.count), divisor = divisor_of(scale);
    for (std::int64_t i = 0; i < a.count; ++i) {
      a.out[i] = Element(code_of(static_cast<float>(a.weight[i]), divisor) * scale);
    }
  }
};

// Straight-through estimator: the gradient passes where the code before clipping is within -127 .. 127. That is
// everywhere, as the largest weight of a row sets its scale, except where the scale is denormal and therefore inexact.
template <class Element>
struct FakeQuantizeBackwardRow {
  struct Arguments {
    const Element *weight, *d_out;
    std::int64_t count;
    Element* d_weight;
  };
  FVLM_LOOP static void run(const Arguments& a) {
    const float scale = scale_of_row(a.weight, a.count), divisor = divisor_of(scale);
    if (scale >= 1.17549435e-38f) { // a normal number
      for (std::int64_t i = 0; i < a.count; ++i) a.d_weight[i] = a.d_out[i];
      return;
    }
    for (std::int64_t i = 0; i < a.count; ++i) {
      const float code = round_half_even(static_cast<float>(a.weight[i]) / divisor);
      const bool clipped = code > 127.0f || code < -127.0f;
      a.d_weight[i] = clipped ? Element(0.0f) : a.d_out[i];
    }
  }
};

} // namespace fvlm::plugins
