// elements.cuh: elements of the call's type as float32, and codes of packed weights.
#pragma once

#include "launches.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace fvlm::plugins {

__device__ inline float widen(float value) {
  return value;
}
__device__ inline float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ inline float widen(__half value) {
  return __half2float(value);
}

template <class Element>
__device__ Element narrow(float value) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else if constexpr (std::is_same_v<Element, __half>) {
    return __float2half_rn(value);
  } else {
    return value;
  }
}

template <int bits>
__device__ float code_at(const std::uint8_t* row, std::int64_t column) {
  if constexpr (bits == 8) {
    return static_cast<float>(reinterpret_cast<const std::int8_t*>(row)[column]);
  } else {
    return static_cast<float>((row[column / 2] >> (column % 2 * 4)) & 15) - 8.0f;
  }
}

// Calls launch(element, integral constant of the bits) with the type of the call.
template <class Launch>
void for_types(fvlm_dtype dtype, int bits, const Launch& launch) {
  const auto with_bits = [&](auto element) {
    if (bits == 8) {
      launch(element, std::integral_constant<int, 8>{});
    } else {
      launch(element, std::integral_constant<int, 4>{});
    }
  };
  if (dtype == sdk::bfloat16) return with_bits(__nv_bfloat16{});
  if (dtype == sdk::float16) return with_bits(__half{});
  with_bits(float{});
}

} // namespace fvlm::plugins
