// muon_loops.h: the element-wise parts of Muon, before and after the matrix products, on tiles of at most 64 x 64.
#pragma once

#include "common/arena.h"
#include "common/cpu_level.h"

#include <cstdint>

namespace fvlm::plugins {

constexpr std::int64_t tile_side = 64;

// momentum <- lerp(momentum, gradient, 1 - mu); out <- lerp(gradient, momentum, mu) with Nesterov, else momentum. Rows
// of out have a stride of tile_side and are padded with zeros.
template <class Gradient, class Moment>
struct MomentumKernel {
  struct Arguments {
    std::int64_t rows, columns, stride;
    const Gradient* gradient;
    Moment* moment;
    float* out;
    float scale, mu, one_minus_mu;
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
        // As torch.lerp: starts from the nearer end.
        const float m = a.one_minus_mu < 0.5f ? old + a.one_minus_mu * (g - old) : g - (g - old) * a.mu;
        const float nesterov = a.mu < 0.5f ? g + a.mu * (m - g) : m - (m - g) * a.one_minus_mu;
        moment[i] = Moment(m);
        out[i] = a.nesterov ? nesterov : m;
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

// master <- master * decay_factor - step_size * update, and its rounded copy.
template <class Copy>
struct ApplyKernel {
  struct Arguments {
    std::int64_t rows, columns, stride;
    float* master;
    Copy* copy;
    const float* update; // row stride tile_side
    float decay_factor, step_size;
  };

  FVLM_LOOP static void run(const Arguments& a) {
    for (std::int64_t r = 0; r < a.rows; ++r) {
      float* __restrict master = a.master + r * a.stride;
      Copy* __restrict copy = nullptr;
      if constexpr (!std::is_same_v<Copy, NoCopy>) copy = a.copy + r * a.stride;
      const float* __restrict update = a.update + r * tile_side;
      for (std::int64_t i = 0; i < a.columns; ++i) {
        const float p = master[i] * a.decay_factor - a.step_size * update[i];
        master[i] = p;
        if constexpr (!std::is_same_v<Copy, NoCopy>) copy[i] = Copy(p);
      }
    }
  }
};

} // namespace fvlm::plugins
