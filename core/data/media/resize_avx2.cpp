// A weight has 23 bits. With Taps::pairs two taps are one multiplication of 16-bit pairs for the upper and one for the
// lower bits; the sums are the same integers.
#include "data/media/resize_loops.h"

#if defined(__x86_64__)
#include <algorithm>
#include <cstring>
#include <immintrin.h>

namespace fvlm {
namespace {

#define FVLM_AVX2 __attribute__((target("avx2")))

constexpr int32_t half = 1 << (weight_bits - 1);

FVLM_AVX2 __m128i load(const void* memory) {
  return _mm_loadu_si128(static_cast<const __m128i*>(memory));
}

// Two sums of halved weights to the rounded result, not yet within 0 .. 255.
FVLM_AVX2 __m256i whole(__m256i upper, __m256i lower) {
  const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(upper, Taps::lower_bits), lower);
  return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(half)), weight_bits);
}
// Some lines at a time, four taps at a time: pixels 0 and 1 of them in the lower half of a register, 2 and 3 in the
// upper.
template <int lines>
FVLM_AVX2 void across_lines(const Taps& taps, const uint8_t* in, uint8_t* out) {
  const __m256i spread = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, //
                                          6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const __m256i uppers_at = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  const __m256i lowers_at = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
  const int64_t in_stride = taps.in * 3, out_stride = taps.out * 3;
  for (int64_t x = 0; x < taps.out; ++x) {
    const int32_t* pairs = taps.pairs.data() + x * taps.width;
    const uint8_t* pixel = in + taps.first[static_cast<size_t>(x)] * int64_t{3};
    const uint8_t* end = pixel + taps.count[static_cast<size_t>(x)] * int64_t{3};
    __m256i upper[lines], lower[lines];
    for (int line = 0; line < lines; ++line) upper[line] = lower[line] = _mm256_setzero_si256();
    for (; pixel < end; pixel += 12, pairs += 4) {
      const __m256i four = _mm256_castsi128_si256(load(pairs));
      const __m256i uppers = _mm256_permutevar8x32_epi32(four, uppers_at);
      const __m256i lowers = _mm256_permutevar8x32_epi32(four, lowers_at);
      for (int line = 0; line < lines; ++line) {
        const __m256i bytes = _mm256_broadcastsi128_si256(load(pixel + line * in_stride));
        const __m256i pixels = _mm256_shuffle_epi8(bytes, spread);
        upper[line] = _mm256_add_epi32(upper[line], _mm256_madd_epi16(pixels, uppers));
        lower[line] = _mm256_add_epi32(lower[line], _mm256_madd_epi16(pixels, lowers));
      }
    }
    // Four bytes a pixel, the fourth of which the next pixel overwrites; behind the last one nothing may be written.
    const size_t bytes = x + 1 < taps.out ? 4 : 3;
    for (int line = 0; line < lines; ++line) {
      const __m256i halves = _mm256_add_epi32(_mm256_slli_epi32(upper[line], Taps::lower_bits), lower[line]);
      const __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
      const __m128i whole = _mm_srai_epi32(_mm_add_epi32(sum, _mm_set1_epi32(half)), weight_bits);
      const int32_t rgb = _mm_cvtsi128_si32(_mm_packus_epi16(_mm_packs_epi32(whole, whole), whole));
      if (bytes == 4)
        std::memcpy(out + line * out_stride + x * 3, &rgb, 4);
      else
        std::memcpy(out + line * out_stride + x * 3, &rgb, 3);
    }
  }
}

FVLM_AVX2 void across(const Taps& taps, int64_t lines, const uint8_t* in, uint8_t* out) {
  constexpr int together = 4;
  int64_t line = 0;
  for (; line + together <= lines; line += together)
    across_lines<together>(taps, in + line * taps.in * 3, out + line * taps.out * 3);
  for (; line < lines; ++line) across_lines<1>(taps, in + line * taps.in * 3, out + line * taps.out * 3);
}

// 16 bytes of a line at a time, two lines at a time.
FVLM_AVX2 void down(const Taps& taps, int64_t row, const uint8_t* in, int64_t bytes, uint8_t* out) {
  const int32_t* pairs = taps.pairs.data() + row * taps.width;
  const int32_t count = taps.count[static_cast<size_t>(row)];
  in += taps.first[static_cast<size_t>(row)] * bytes;
  for (int64_t x = 0; x < bytes; x += 16) {
    const auto here = static_cast<size_t>(std::min<int64_t>(16, bytes - x));
    __m256i upper_a = _mm256_setzero_si256(), lower_a = upper_a, upper_b = upper_a, lower_b = upper_a;
    for (int32_t tap = 0; tap < count; tap += 2) {
      const uint8_t* line = in + tap * bytes + x;
      const bool two = tap + 1 < count;
      __m128i one = _mm_setzero_si128(), other = one;
      if (here == 16) {
        one = load(line);
        if (two) other = load(line + bytes);
      } else {
        std::memcpy(&one, line, here);
        if (two) std::memcpy(&other, line + bytes, here);
      }
      const int32_t* halves = pairs + tap / 4 * 4 + tap % 4 / 2;
      const __m256i uppers = _mm256_set1_epi32(halves[0]), lowers = _mm256_set1_epi32(halves[2]);
      const __m256i a = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(one, other));
      const __m256i b = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(one, other));
      upper_a = _mm256_add_epi32(upper_a, _mm256_madd_epi16(a, uppers));
      lower_a = _mm256_add_epi32(lower_a, _mm256_madd_epi16(a, lowers));
      upper_b = _mm256_add_epi32(upper_b, _mm256_madd_epi16(b, uppers));
      lower_b = _mm256_add_epi32(lower_b, _mm256_madd_epi16(b, lowers));
    }
    // packs works within halves of a register: the permutation puts the four parts in their order again.
    const __m256i mixed = _mm256_packs_epi32(whole(upper_a, lower_a), whole(upper_b, lower_b));
    const __m256i words = _mm256_permute4x64_epi64(mixed, 0xd8);
    const __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    std::memcpy(out + x, &packed, here);
  }
}

} // namespace

const ResizeLoops* avx2_resize_loops() {
  static constexpr ResizeLoops loops{"avx2", across, down};
  return __builtin_cpu_supports("avx2") ? &loops : nullptr;
}

} // namespace fvlm

#else

namespace fvlm {

const ResizeLoops* avx2_resize_loops() {
  return nullptr;
}

} // namespace fvlm

#endif
