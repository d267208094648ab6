// muon_loops.h: what Muon does element by element, before and after the products, on tiles of at most 64 x 64.
#pragma once

#include "common/arena.h"
#include "common/cpu_level.h"

#include <cstdint>

namespace fvlm::plugins {

constexpr std::int64_t tile_side = 64;

// momentum <- lerp(momentum, gradient, 1 - mu); out <- lerp(gradient, momentum, mu) with Nesterov, else momentum. Rows
// of out are tile_side apart and filled up with zeros.
template <class Gradient, class Moment>
struct MomentumKernel {
  struct Arguments {
    std::int64_t rows, columns, stride;
    const Gradient* gradient;
    Moment* moment;
    float* out;
    float scale, keep, add; // mu, 1 - mu
    bool nesterov;
  };

  FVLM_LOOP static void run(const Arguments& a) {
    for (std::int64_t r = 0; r < a.rows; ++r) {
      const Gradient* __restrict gradient = a.gradient + r * a.stride;
      Moment* __restrict moment = a.moment + r * a.stride;
      float* __restrict out = a.out + r * tile_side;
      for (std::int64_t i = 0; i < a.columns; ++i) {
        const float g = static_cast<float>(gradient[i]) * a.scale;
        const float old = static_cast<float>(moment[i]);
        // As torch.lerp: from the end that is nearer.
        const float m = a.add < 0.5f ? old + a.add * (g - old) : g - (g - old) * a.keep;
        const float ahead = a.keep < 0.5f ? g + a.keep * (m - g) : m - (m - g) * a.add;
        moment[i] = Moment(m);
        out[i] = a.nesterov ? ahead : m;
      }
      for (std::int64_t i = a.columns; i < tile_side; ++i) out[i] = 0;
    }
  }
};

struct DivideKernel {
  struct Arguments {
    float* values;
    std::int64_t count;
    float divisor;
  };

  FVLM_LOOP static void run(const Arguments& a) {
    for (std::int64_t i = 0; i < a.count; ++i) a.values[i] /= a.divisor;
  }
};

// master <- master * keep - step * update, and its rounded copy.
template <class Copy>
struct ApplyKernel {
  struct Arguments {
    std::int64_t rows, columns, stride;
    float* master;
    Copy* copy;
    const float* update; // rows tile_side apart
    float keep, step;
  };

  FVLM_LOOP static void run(const Arguments& a) {
    for (std::int64_t r = 0; r < a.rows; ++r) {
      float* __restrict master = a.master + r * a.stride;
      Copy* __restrict copy = nullptr;
      if constexpr (!std::is_same_v<Copy, NoCopy>) copy = a.copy + r * a.stride;
      const float* __restrict update = a.update + r * tile_side;
      for (std::int64_t i = 0; i < a.columns; ++i) {
        const float p = master[i] * a.keep - a.step * update[i];
        master[i] = p;
        if constexpr (!std::is_same_v<Copy, NoCopy>) copy[i] = Copy(p);
      }
    }
  }
};

} // namespace fvlm::plugins
