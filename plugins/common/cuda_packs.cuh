// cuda_packs.cuh: vectorized loads and stores: packs of up to 16 bytes per thread, converted to float32 for arithmetic;
// sums over the threads of a warp or block.
#pragma once

#include <fvlm/cuda.hpp>

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

namespace fvlm::plugins {

using sdk::BFloat16, sdk::Half;

// Elements in the largest pack, 16 bytes.
template <class Element>
inline constexpr int pack_size = 16 / static_cast<int>(sizeof(Element));

// `count` elements in memory format, loaded and stored by one instruction. Values stay packed while loads are in
// flight, since that takes half the registers of floats.
template <class Element, int count>
struct Pack {
  static constexpr int words = count * static_cast<int>(sizeof(Element)) / 4;
  struct alignas(words < 4 ? words * 4 : 16) Words { // wider ones are read in pieces of 16 bytes
    std::uint32_t at[words];
  };
  Words bits;

  __device__ void load(const Element* from) { bits = *reinterpret_cast<const Words*>(from); }
  __device__ void store(Element* to) const { *reinterpret_cast<Words*>(to) = bits; }
  __device__ void gather(const Element (&from)[count]) { memcpy(&bits, from, sizeof bits); }

  __device__ void widen(float (&values)[count]) const {
#pragma unroll
    for (int i = 0; i < words; ++i) {
      const std::uint32_t word = bits.at[i];
      if constexpr (std::is_same_v<Element, BFloat16>) {
        values[2 * i] = __uint_as_float(word << 16);
        values[2 * i + 1] = __uint_as_float(word & 0xffff0000u);
      } else if constexpr (std::is_same_v<Element, Half>) {
        const float2 both = __half22float2(sdk::bit_cast<__half2>(word));
        values[2 * i] = both.x;
        values[2 * i + 1] = both.y;
      } else {
        values[i] = __uint_as_float(word);
      }
    }
  }
  __device__ void round(const float (&values)[count]) {
#pragma unroll
    for (int i = 0; i < words; ++i) {
      if constexpr (std::is_same_v<Element, BFloat16>) {
        bits.at[i] = sdk::bit_cast<std::uint32_t>(__floats2bfloat162_rn(values[2 * i], values[2 * i + 1]));
      } else if constexpr (std::is_same_v<Element, Half>) {
        bits.at[i] = sdk::bit_cast<std::uint32_t>(__floats2half2_rn(values[2 * i], values[2 * i + 1]));
      } else {
        bits.at[i] = __float_as_uint(values[i]);
      }
    }
  }
};

// A single element at any address that suits its type.
template <class Element>
struct Pack<Element, 1> {
  Element element;

  __device__ void load(const Element* from) { element = *from; }
  __device__ void store(Element* to) const { *to = element; }
  __device__ void widen(float (&values)[1]) const { values[0] = static_cast<float>(element); }
  __device__ void round(const float (&values)[1]) { element = Element(values[0]); }
};

template <class Element, int count>
__device__ void read(const Element* from, float (&values)[count]) {
  Pack<Element, count> pack;
  pack.load(from);
  pack.widen(values);
}

template <class Element, int count>
__device__ void write(Element* to, const float (&values)[count]) {
  Pack<Element, count> pack;
  pack.round(values);
  pack.store(to);
}

inline constexpr int warp_size = 32;

__device__ inline std::uint32_t shared_address(const void* memory) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
}

// The sum over a warp, returned to all of its threads.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lane_mask = warp_size / 2; lane_mask > 0; lane_mask /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, lane_mask);
  return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int other = warp_size / 2; other > 0; other /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, other));
  return value;
}

// Sums over `threads` threads: a warp or the whole block. A block may start its next sum at once, because consecutive
// sums alternate between two buffers.
template <int threads>
class GroupSum {
 public:
  __device__ float operator()(float value) {
    value = warp_sum(value);
    if constexpr (threads > warp_size) {
      constexpr int warps = threads / warp_size;
      __shared__ float shared[2][warps];
      if (threadIdx.x % warp_size == 0) shared[turn_][threadIdx.x / warp_size] = value;
      __syncthreads();
      value = 0;
#pragma unroll
      for (int i = 0; i < warps; ++i) value += shared[turn_][i];
      turn_ ^= 1;
    }
    return value;
  }

 private:
  int turn_ = 0;
};

// A pair of numbers as an operand of a product has it.
template <class T>
__device__ std::uint32_t rounded(float low, float high) {
  Pack<T, 2> both;
  both.round({low, high});
  return both.bits.at[0];
}

} // namespace fvlm::plugins
