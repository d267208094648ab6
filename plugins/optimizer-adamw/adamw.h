// adamw.h: the AdamW update of a contiguous range, in one pass over memory.
#pragma once

#include "common/arena.h"
#include "common/cpu_level.h"

#include <cmath>
#include <cstdint>

namespace fvlm::plugins {

// What torch.optim.AdamW computes of its hyperparameters before it touches a tensor, in its order and in double.
struct AdamwCoefficients {
  float keep, step_size, inverse_correction, epsilon, scale;
  float first_weight, second_decay, second_weight;

  AdamwCoefficients(double lr, double beta1, double beta2, double epsilon_, double decay, std::int64_t step,
                    float scale_)
      : keep(static_cast<float>(1 - lr * decay)),
        step_size(static_cast<float>(lr / (1 - std::pow(beta1, static_cast<double>(step))))),
        inverse_correction(static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, static_cast<double>(step))))),
        epsilon(static_cast<float>(epsilon_)), scale(scale_), first_weight(static_cast<float>(1 - beta1)),
        second_decay(static_cast<float>(beta2)), second_weight(static_cast<float>(1 - beta2)) {}
};

template <class Gradient, class Copy, class Moment>
struct AdamwKernel {
  struct Arguments {
    AdamwCoefficients coefficients;
    std::int64_t count;
    float* master;
    Copy* copy;
    const Gradient* gradient;
    Moment* first;
    float* second;
  };

  // Four streams are more than the hardware's prefetcher follows across pages: asking 1 KiB ahead is worth a fifth.
  static constexpr std::int64_t block = 64, far_ahead = 256;

  FVLM_LOOP static void run(const Arguments& arguments) {
    const AdamwCoefficients k = arguments.coefficients;
    const std::int64_t count = arguments.count;
    float* __restrict master = arguments.master;
    Copy* __restrict copy = arguments.copy;
    const Gradient* __restrict gradient = arguments.gradient;
    Moment* __restrict first = arguments.first;
    float* __restrict second = arguments.second;
    for (std::int64_t begin = 0; begin < count; begin += block) {
      const std::int64_t end = begin + block < count ? begin + block : count;
      for (std::int64_t ahead = begin + far_ahead; ahead < begin + far_ahead + block; ahead += 16) {
        __builtin_prefetch(gradient + ahead);
        __builtin_prefetch(first + ahead, 1);
        __builtin_prefetch(second + ahead, 1);
        __builtin_prefetch(master + ahead, 1);
        if constexpr (!std::is_same_v<Copy, NoCopy>) __builtin_prefetch(copy + ahead, 1);
      }
      for (std::int64_t i = begin; i < end; ++i) {
        const float g = static_cast<float>(gradient[i]) * k.scale;
        const float old = static_cast<float>(first[i]);
        const float m = old + k.first_weight * (g - old);
        const float v = second[i] * k.second_decay + k.second_weight * (g * g);
        const float p = master[i] * k.keep - k.step_size * (m / (std::sqrt(v) * k.inverse_correction + k.epsilon));
        first[i] = Moment(m);
        second[i] = v;
        master[i] = p;
        if constexpr (!std::is_same_v<Copy, NoCopy>) copy[i] = Copy(p);
      }
    }
  }
};

} // namespace fvlm::plugins
