// int8_products.cpp: compiled once per instruction set.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "int8_products.h"

#include "common/simd.h"

namespace fvlm::plugins::FVLM_LEVEL {
namespace {

FVLM_INLINE void add_tail(const Int8Task& task, const int8_t* weight, int64_t from, int32_t (&sums)[int8_tokens]) {
  for (int64_t t = 0; t < task.tokens; ++t)
    for (int64_t c = from; c < task.cols; ++c)
      sums[t] += static_cast<int32_t>(weight[c]) * static_cast<int32_t>(task.x[t * task.x_stride + c]);
}

FVLM_INLINE void write(const Int8Task& task, int64_t row, const int32_t (&sums)[int8_tokens]) {
  for (int64_t t = 0; t < task.tokens; ++t) task.sums[t * task.stride + row] = sums[t];
}

// Vectors of 32-bit sums, and the products of as many pairs of codes. These fit into 32 bits; in 16 bits, those of
// unsigned and signed bytes would not.
#if defined(__AVX512F__)
using Sums = __m512i;
constexpr int64_t step = 32; // codes
FVLM_INLINE __m512i widened(const int8_t* from) {
  __m256i bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return _mm512_cvtepi8_epi16(bytes);
}
FVLM_INLINE __m512i add_products(__m512i sums, __m512i a, __m512i b) {
  return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
}
FVLM_INLINE int32_t total_of(__m512i sums) {
  return _mm512_reduce_add_epi32(sums);
}
#elif defined(__AVX2__)
using Sums = __m256i;
constexpr int64_t step = 16; // codes
FVLM_INLINE __m256i widened(const int8_t* from) {
  __m128i bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return _mm256_cvtepi8_epi16(bytes);
}
FVLM_INLINE __m256i add_products(__m256i sums, __m256i a, __m256i b) {
  return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
}
FVLM_INLINE int32_t total_of(__m256i sums) {
  Integers parts;
  std::memcpy(&parts, &sums, sizeof parts);
  int32_t total = 0;
  for (int i = 0; i < lanes; ++i) total += parts[i];
  return total;
}
#endif

// Returns how many columns are in the sums.
#if defined(__AVX2__)
FVLM_INLINE int64_t add_vectors(const Int8Task& task, const int8_t* weight, int32_t (&sums)[int8_tokens]) {
  Sums total[int8_tokens] = {};
  int64_t c = 0;
  for (; c + step <= task.cols; c += step) {
    const Sums of_weight = widened(weight + c);
    for (int t = 0; t < int8_tokens; ++t)
      if (t < task.tokens) total[t] = add_products(total[t], of_weight, widened(task.x + t * task.x_stride + c));
  }
  for (int t = 0; t < int8_tokens; ++t) sums[t] = total_of(total[t]);
  return c;
}
#else
FVLM_INLINE int64_t add_vectors(const Int8Task&, const int8_t*, int32_t (&)[int8_tokens]) {
  return 0;
}
#endif

void plain(const Int8Task& task) {
  for (int64_t row = task.begin; row < task.end; ++row) {
    const int8_t* weight = task.weight + row * task.cols;
    int32_t sums[int8_tokens] = {};
    add_tail(task, weight, add_vectors(task, weight, sums), sums);
    write(task, row, sums);
  }
}

#if defined(__AVX512F__)
// The instruction takes one operand as unsigned bytes: the weight with 128 added, whose share of the sum is 128 times
// the sum of x.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))) void vnni(const Int8Task& task) {
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
  for (int64_t row = task.begin; row < task.end; ++row) {
    const int8_t* weight = task.weight + row * task.cols;
    __m512i total[int8_tokens] = {};
    for (int64_t c = 0; c < task.cols; c += 64) {
      const int64_t left = task.cols - c;
      const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
      const __m512i bytes = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, weight + c), flip);
      for (int t = 0; t < int8_tokens; ++t) {
        if (t >= task.tokens) break;
        total[t] = _mm512_dpbusd_epi32(total[t], bytes, _mm512_loadu_si512(task.x + t * task.x_stride + c));
      }
    }
    for (int64_t t = 0; t < task.tokens; ++t)
      task.sums[t * task.stride + row] = _mm512_reduce_add_epi32(total[t]) - 128 * task.x_sums[t];
  }
}
#endif

} // namespace

const Int8Kernels& int8_kernels() {
#if defined(__AVX512F__)
  static const Int8Kernels kernels{plain, vnni};
#else
  static const Int8Kernels kernels{plain, nullptr};
#endif
  return kernels;
}

} // namespace fvlm::plugins::FVLM_LEVEL
