// cuda_rotary.cuh: angles of rotary position embeddings. Angles are fixed-point fractions of a full turn, which wrap
// around without loss of precision however large the position is.
#pragma once

#include <fvlm/cuda.hpp>

#include <cmath>
#include <cstdint>

namespace fvlm::plugins {

// Angle per position, in units of 2^-64 of a full turn, of a frequency in radians.
__host__ __device__ inline std::uint64_t rotary_step(double frequency) {
  const double turns = frequency * 0.15915494309189533577;
  return static_cast<std::uint64_t>((turns - floor(turns)) * 0x1p64);
}

// The same of theta's frequencies.
__host__ __device__ inline std::uint64_t rotary_frequency(int frequency, int rotary_dim, double log2_theta) {
  return rotary_step(exp2(-2.0 * frequency / rotary_dim * log2_theta));
}

// The angle at a position, in [-half_turn, half_turn]. `half_turn` selects the unit of the result: pi for radians, 1
// for sincospif().
__device__ inline float rotary_angle(std::uint64_t step, std::int32_t position, float half_turn) {
  const std::uint32_t number = static_cast<std::uint32_t>(position), distance = position < 0 ? 0 - number : number;
  const auto turned = static_cast<std::int32_t>((step * distance) >> 32);
  return static_cast<float>(turned) * (position < 0 ? -0x1p-31f * half_turn : 0x1p-31f * half_turn);
}

} // namespace fvlm::plugins
