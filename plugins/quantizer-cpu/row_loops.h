// row_loops.h: quantizes and dequantizes a row of weights.
#pragma once

#include "schemes.h"

namespace fvlm::plugins {

template <class Scheme, class Element>
struct QuantizeRow {
  struct Arguments {
    const Element* weight;
    const float* importance; // of each column, or NULL
    std::int64_t count;
    typename Scheme::Stored* codes;
    float* scales;
  };
  FVLM_LOOP static void run(const Arguments& a) {
    for (std::int64_t i = (a.count * Scheme::bits + 7) / 8; i < Scheme::stored(a.count); ++i) a.codes[i] = 0;
    const std::int64_t group = Scheme::group(a.count);
    for (std::int64_t g = 0; g < Scheme::groups(a.count); ++g) {
      const std::int64_t begin = g * group;
      const float scale = Scheme::scale(a.weight + begin, a.importance ? a.importance + begin : nullptr, group);
      const float divisor = divisor_of(scale);
      Scheme::encode(
          a.codes, begin, group, [&](std::int64_t i) __attribute__((always_inline)) {
            return code_of<Scheme>(static_cast<float>(a.weight[i]), divisor);
          });
      a.scales[g] = scale;
    }
  }
};

template <class Scheme, class Element>
struct DequantizeRow {
  struct Arguments {
    const typename Scheme::Stored* codes;
    std::int64_t count;
    const float* scales;
    Element* weight;
  };
  FVLM_LOOP static void run(const Arguments& a) {
    const std::int64_t group = Scheme::group(a.count);
    for (std::int64_t g = 0; g < Scheme::groups(a.count); ++g)
      for (std::int64_t i = g * group; i < (g + 1) * group; ++i)
        a.weight[i] = Element(Scheme::decode(a.codes, i) * a.scales[g]);
  }
};

template <class Scheme, class Element>
struct FakeQuantizeRow {
  struct Arguments {
    const Element* weight;
    std::int64_t count;
    Element* out;
  };
  FVLM_LOOP static void run(const Arguments& a) {
    const std::int64_t group = Scheme::group(a.count);
    for (std::int64_t g = 0; g < Scheme::groups(a.count); ++g) {
      const float scale = Scheme::scale(a.weight + g * group, nullptr, group), divisor = divisor_of(scale);
      for (std::int64_t i = g * group; i < (g + 1) * group; ++i)
        a.out[i] = Element(code_of<Scheme>(static_cast<float>(a.weight[i]), divisor) * scale);
    }
  }
};

// Straight-through estimator: the gradient passes where the code before clipping is within the range of codes.
template <class Scheme, class Element>
struct FakeQuantizeBackwardRow {
  struct Arguments {
    const Element *weight, *d_out;
    std::int64_t count;
    Element* d_weight;
  };
  FVLM_LOOP static void run(const Arguments& a) {
    const std::int64_t group = Scheme::group(a.count);
    for (std::int64_t g = 0; g < Scheme::groups(a.count); ++g) {
      const float divisor = divisor_of(Scheme::scale(a.weight + g * group, nullptr, group));
      for (std::int64_t i = g * group; i < (g + 1) * group; ++i) {
        const float code = round_half_even(static_cast<float>(a.weight[i]) / divisor);
        const bool clipped = code > Scheme::max_code || code < Scheme::min_code;
        a.d_weight[i] = clipped ? Element(0.0f) : a.d_out[i];
      }
    }
  }
};

// A row of x as w8a8 has it; codes behind its end are 0.
template <class Element>
struct QuantizeActivations {
  struct Arguments {
    const Element* x;
    std::int64_t count, stored;
    std::int8_t* codes;
    float* scale;
    std::int32_t* sum; // of the codes
  };
  FVLM_LOOP static void run(const Arguments& a) {
    const float scale = largest_magnitude(a.x, a.count) / 127.5f, divisor = divisor_of(scale);
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < a.count; ++i) {
      const float code = round_half_even(static_cast<float>(a.x[i]) / divisor);
      const auto kept = static_cast<std::int32_t>(code > 127.0f ? 127.0f : code >= -128.0f ? code : -128.0f);
      a.codes[i] = static_cast<std::int8_t>(kept);
      sum += kept;
    }
    for (std::int64_t i = a.count; i < a.stored; ++i) a.codes[i] = 0;
    *a.scale = scale;
    *a.sum = sum;
  }
};

} // namespace fvlm::plugins
