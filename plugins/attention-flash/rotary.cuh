// rotary.cuh: rotary position embedding applied to tiles in shared memory and to accumulators. Column c is paired with
// column c + 32.
#pragma once

#include "common/cuda_rotary.cuh"
#include "tiles.cuh"

namespace fvlm::plugins {

// The results are rounded to 16 bits, so the special function unit (error 2^-20) is exact enough.
struct Rotation {
  float cosine, sine;

  __device__ Rotation(float cosine, float sine) : cosine(cosine), sine(sine) {}
  __device__ Rotation(std::uint64_t step, std::int32_t position) {
    const float angle = rotary_angle(step, position, 3.14159265358979f);
    cosine = __cosf(angle), sine = __sinf(angle);
  }
  __device__ void apply(float& low, float& high) const {
    const float rotated = low * cosine - high * sine;
    high = high * cosine + low * sine;
    low = rotated;
  }
  __device__ void undo(float& low, float& high) const {
    const float rotated = low * cosine + high * sine;
    high = high * cosine - low * sine;
    low = rotated;
  }
};

// Rotates packs `part` and part + 4 of a tile's row, part < 4, which are each other's pairs.
template <class T>
__device__ void rotate_in_place(const Tile& tile, int row, int part, const std::uint64_t* steps,
                                std::int32_t position) {
  T *const low = tile.at<T>(row, part), *const high = tile.at<T>(row, part + packs / 2);
  float a[pack], b[pack];
  read(low, a);
  read(high, b);
#pragma unroll
  for (int i = 0; i < pack; ++i) Rotation(steps[part * pack + i], position).apply(a[i], b[i]);
  write(low, a);
  write(high, b);
}

// Applies the inverse rotation to gradients in accumulators.
__device__ inline void rotate_back(float (&x)[blocks][4], const std::uint64_t* steps, const int (&positions)[2]) {
  const int column = lane_in_quad() * 2;
#pragma unroll
  for (int b = 0; b < blocks / 2; ++b)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      Rotation(steps[8 * b + column + i % 2], positions[i / 2]).undo(x[b][i], x[b + blocks / 2][i]);
}

} // namespace fvlm::plugins
