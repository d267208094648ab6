// cuda_rotary.cuh: the angles of rotary embedding. Angles are counted in turns, in fixed point that wraps around at a
// whole one: however large the position, nothing is lost.
#pragma once

#include <fvlm/cuda.hpp>

#include <cmath>
#include <cstdint>

namespace fvlm::plugins {

// What each position adds to the angle of a frequency, in 2^-64 of a turn.
__host__ __device__ inline std::uint64_t rotary_frequency(int frequency, int rotary_dim, double log2_theta) {
  const double turns = exp2(-2.0 * frequency / rotary_dim * log2_theta) * 0.15915494309189533577;
  return static_cast<std::uint64_t>((turns - floor(turns)) * 0x1p64);
}

// A position's angle, at most half a turn either way. `half_turn`: what a half turn is in the result.
__device__ inline float rotary_angle(std::uint64_t step, std::int32_t position, float half_turn) {
  const std::uint32_t number = static_cast<std::uint32_t>(position), distance = position < 0 ? 0 - number : number;
  const auto turned = static_cast<std::int32_t>((step * distance) >> 32);
  return static_cast<float>(turned) * (position < 0 ? -0x1p-31f * half_turn : 0x1p-31f * half_turn);
}

} // namespace fvlm::plugins
