// cuda_codes.cuh: codes of packed weights (fvlm/quantizer.h), how the lanes of a warp read them, and as pairs of
// numbers in 16 bits, which are operands of mma.sync and wgmma.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

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

// Weights are read once.
__device__ inline uint4 load_codes(const std::uint8_t* from) {
  uint4 codes;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(codes.x), "=r"(codes.y), "=r"(codes.z), "=r"(codes.w)
               : "l"(from));
  return codes;
}

__device__ inline std::uint32_t load_word(const std::uint8_t* from) {
  std::uint32_t word;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(word) : "l"(from));
  return word;
}

__device__ inline void load_words(const std::uint8_t* from, std::uint32_t& first, std::uint32_t& second) {
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(first), "=r"(second) : "l"(from));
}

__device__ inline std::uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Which columns a lane has: 16 bytes of codes, in runs of `together` adjacent words. The runs of four lanes follow each
// other and make a slice of adjacent columns, all of one group; behind it come the four lanes' next runs.
template <int bits, int together>
struct LaneColumns {
  static constexpr int word_columns = Codes<bits>::columns_of_word, slices = 4 / together;
  static constexpr int slice_width = 4 * together * word_columns; // columns
  static constexpr int width = slices * slice_width;              // of a warp at a time
  static __device__ int column(int t, int word) {
    return word / together * slice_width + (t * together + word % together) * word_columns;
  }
  // Codes from column `begin` of a row on; behind the row's end those of 0.
  static __device__ uint4 load(const std::uint8_t* row, int begin, int t, int cols) {
    constexpr int codes_of_byte = 8 / bits;
    constexpr std::uint32_t none = bits == 4 ? 0x88888888u : 0;
    uint4 words{none, none, none, none};
    const auto at = [&](int word) { return row + (begin + column(t, word)) / codes_of_byte; };
    const auto is_there = [&](int word) { return begin + column(t, word) < cols; };
    if constexpr (together == 4) {
      if (is_there(0)) words = load_codes(at(0));
    } else if constexpr (together == 2) {
      if (is_there(0)) load_words(at(0), words.x, words.y);
      if (is_there(2)) load_words(at(2), words.z, words.w);
    } else {
      if (is_there(0)) words.x = load_word(at(0));
      if (is_there(1)) words.y = load_word(at(1));
      if (is_there(2)) words.z = load_word(at(2));
      if (is_there(3)) words.w = load_word(at(3));
    }
    return words;
  }
};

} // namespace fvlm::plugins
