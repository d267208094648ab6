// codes.cuh: codes of packed weights as pairs of numbers in 16 bits, operands of mma.sync and wgmma.
#pragma once

#include "elements.cuh"

namespace fvlm::plugins {

// Takes the offset from a pair of numbers whose low bits of the fraction are integers, which leaves the integers.
__device__ inline std::uint32_t subtract(std::uint32_t pair, std::uint32_t offset, __nv_bfloat16) {
  const __nv_bfloat162 off =
      __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&pair), *reinterpret_cast<const __nv_bfloat162*>(&offset));
  return *reinterpret_cast<const std::uint32_t*>(&off);
}
__device__ inline std::uint32_t subtract(std::uint32_t pair, std::uint32_t offset, __half) {
  const __half2 off = __hsub2(*reinterpret_cast<const __half2*>(&pair), *reinterpret_cast<const __half2*>(&offset));
  return *reinterpret_cast<const std::uint32_t*>(&off);
}

// (bits & mask) | base, in one instruction.
__device__ inline std::uint32_t masked_or(std::uint32_t bits, std::uint32_t mask, std::uint32_t base) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(bits), "r"(mask), "r"(base));
  return result;
}

// What a scheme's 16 bytes of a lane are: `columns` of them in words, and how a word becomes pairs of numbers.
template <int bits>
struct Codes;

template <>
struct Codes<4> {
  static constexpr int columns = 32, columns_of_word = 8;
  // The pairs (0, 4), (1, 5), (2, 6) and (3, 7) of the word's columns.
  template <class Element>
  static __device__ void widen(std::uint32_t word, std::uint32_t (&pairs)[4]) {
    constexpr bool is_bfloat16 = std::is_same_v<Element, __nv_bfloat16>;
    constexpr std::uint32_t base = is_bfloat16 ? 0x43004300u : 0x64006400u, // 128 and 1024, whose steps are 1
        both_offsets = is_bfloat16 ? 0x43084308u : 0x64086408u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = subtract(masked_or(word >> (4 * i), 0x000f000fu, base), both_offsets, Element{});
    }
  }
  // The pair of two adjacent columns, whose codes are the byte.
  template <class Element>
  static __device__ std::uint32_t pair(std::uint32_t byte) {
    constexpr bool is_bfloat16 = std::is_same_v<Element, __nv_bfloat16>;
    return subtract(masked_or(byte * 0x1001u, 0x000f000fu, is_bfloat16 ? 0x43004300u : 0x64006400u),
                    is_bfloat16 ? 0x43084308u : 0x64086408u, Element{});
  }
  // The same pairs of eight elements of x.
  static __device__ void order(const std::uint32_t (&x)[4], std::uint32_t (&pairs)[4]) {
    pairs[0] = __byte_perm(x[0], x[2], 0x5410);
    pairs[1] = __byte_perm(x[0], x[2], 0x7632);
    pairs[2] = __byte_perm(x[1], x[3], 0x5410);
    pairs[3] = __byte_perm(x[1], x[3], 0x7632);
  }
};

template <>
struct Codes<8> {
  static constexpr int columns = 16, columns_of_word = 4;
  // The pair of two adjacent columns, whose codes are the word's low bytes, or others by __byte_perm's selector.
  template <class Element>
  static __device__ std::uint32_t pair(std::uint32_t word, unsigned selector = 0x4140) {
    if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
      // The seven low bits with 128 added, less 128, or 256 if the sign is set: it is the exponent's lowest bit.
      const std::uint32_t bytes = __byte_perm(word, 0, selector);
      return subtract(masked_or(bytes, 0x007f007fu, 0x43004300u), masked_or(bytes, 0x00800080u, 0x43004300u),
                      Element{});
    } else { // with 128 added
      return subtract(__byte_perm(word ^ 0x80808080u, 0x64646464u, selector), 0x64806480u, Element{});
    }
  }
  // The pairs (0, 1) and (2, 3).
  template <class Element>
  static __device__ void widen(std::uint32_t word, std::uint32_t (&pairs)[2]) {
    if constexpr (std::is_same_v<Element,
                                 __nv_bfloat16>) { // by way of float32, as bfloat16 has steps of 1 up to 256 only
      const std::uint32_t biased = word ^ 0x80808080u;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float a = __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7440 + 2 * i)) - 8388736.0f,
                    b = __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7441 + 2 * i)) - 8388736.0f;
        const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
        pairs[i] = *reinterpret_cast<const std::uint32_t*>(&both);
      }
    } else {
      pairs[0] = pair<Element>(word, 0x4140);
      pairs[1] = pair<Element>(word, 0x4342);
    }
  }
};

} // namespace fvlm::plugins
