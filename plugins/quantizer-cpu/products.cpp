// products.cpp: products of float32 activations with quantized weights, compiled once per instruction set.
// gcc 12 warns of the operand that its own _mm512_reduce_add_ps() leaves undefined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "products.h"

#include "common/microkernel.h"
#include "common/transpose.h"

namespace fvlm::plugins::FVLM_LEVEL {
namespace {

// Codes of a row from a column on. Intrinsics, because gcc 12 compiles __builtin_convertvector of bytes to scalar code.
struct Int8Codes {
  const int8_t* row;

  FVLM_INLINE float at(int64_t column) const { return static_cast<float>(row[column]); }
  FVLM_INLINE Vector load(int64_t column) const {
#if defined(__AVX512F__)
    __m128i bytes;
    std::memcpy(&bytes, row + column, lanes);
    return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
    __m128i bytes = _mm_setzero_si128();
    std::memcpy(&bytes, row + column, lanes);
    return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else
    return Vector{at(column), at(column + 1), at(column + 2), at(column + 3)};
#endif
  }
};

// Two codes a byte. load() wants a column that is a multiple of `lanes`, and as many columns in the row.
struct Int4Codes {
  const uint8_t* row;

  FVLM_INLINE float at(int64_t column) const {
    return static_cast<float>((row[column / 2] >> (column % 2 * 4)) & 15) - 8;
  }
  FVLM_INLINE Vector load(int64_t column) const {
#if defined(__AVX512F__)
    // The first word in lanes 0 to 7, the second in 8 to 15; each lane shifts its code down. A permutation reads four
    // bits of each lane, so that it is the table of all codes.
    const __m512i word = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                  shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512 table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    int64_t both;
    std::memcpy(&both, row + column / 2, sizeof both);
    const __m512i words = _mm512_permutexvar_epi32(word, _mm512_castsi128_si512(_mm_cvtsi64_si128(both)));
    return (Vector)_mm512_permutexvar_ps(_mm512_srlv_epi32(words, shift), table);
#elif defined(__AVX2__)
    int32_t word;
    std::memcpy(&word, row + column / 2, sizeof word);
    const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return (Vector)_mm256_cvtepi32_ps(
        _mm256_sub_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(15)), _mm256_set1_epi32(8)));
#else
    return Vector{at(column), at(column + 1), at(column + 2), at(column + 3)};
#endif
  }
};

template <class Codes>
FVLM_INLINE Vector load_codes_part(const Codes& codes, int64_t column, int64_t count) {
  float buffer[lanes] = {};
  for (int i = 0; i < lanes; ++i)
    if (i < count) buffer[i] = codes.at(column + i);
  return load(buffer);
}

template <class Codes>
FVLM_INLINE Codes codes_of(const QuantizedWeight& weight, int64_t row) {
  using Pointer = decltype(Codes::row);
  return {static_cast<Pointer>(weight.codes) + row * weight.stride};
}

// Columns [from, from + count) of a row as float32. `from` is a multiple of `lanes`.
template <class Codes>
void dequantize(const QuantizedWeight& weight, int64_t row, int64_t from, int64_t count, float* to) {
  const Codes codes = codes_of<Codes>(weight, row);
  for (int64_t c = 0; c < count;) {
    const int64_t group = (from + c) / weight.group, group_end = (group + 1) * weight.group - from;
    const int64_t end = group_end < count ? group_end : count;
    const Vector scale = splat(weight.scales[row * weight.groups + group]);
    for (; c + lanes <= end; c += lanes) store(to + c, codes.load(from + c) * scale);
    if (c < end) store_part(to + c, load_codes_part(codes, from + c, end - c) * scale, end - c);
    c = end;
  }
}

template <class Element>
void write(const LinearTask& task, const float* sums) {
  const int64_t width = task.end - task.begin;
  alignas(64) float bias[block_columns];
  for (int64_t c = 0; c < block_columns; ++c)
    bias[c] = task.bias && c < width ? to_float(static_cast<const Element*>(task.bias)[task.begin + c]) : 0;
  for (int64_t t = 0; t < task.tokens; ++t) {
    Element* y = static_cast<Element*>(task.y) + t * task.y_stride + task.begin;
    for (int64_t c = 0; c < width; c += lanes) {
      const Vector value = load(sums + t * block_columns + c) + load(bias + c);
      if (c + lanes <= width) {
        store(y + c, value);
      } else {
        store_part(y + c, value, width - c);
      }
    }
  }
}

void write(const LinearTask& task, const float* sums) {
  if (task.bfloat16) {
    write<Bfloat>(task, sums);
  } else {
    write<float>(task, sums);
  }
}

// Multiplies x[t, 0 .. depth) with a weight whose blocks pack(weights, from, count) converts to [count, block_columns]
// floats.
template <class Pack>
void multiply_blocks(const LinearTask& task, int64_t depth, const Pack& pack) {
  float *weights = task.scratch, *sums = task.scratch + 2 * block_columns * block_depth;
  const int64_t vectors = (task.end - task.begin + lanes - 1) / lanes;
  for (int64_t from = 0; from < depth; from += block_depth) {
    const int64_t count = depth - from < block_depth ? depth - from : block_depth;
    pack(weights, from, count);
    const Product product{count, task.x + from, task.x_stride, 1, weights, block_columns, sums, block_columns};
    if (from == 0) {
      multiply<false>(product, task.tokens, vectors);
    } else {
      multiply<true>(product, task.tokens, vectors);
    }
  }
  if (depth == 0) std::memset(sums, 0, static_cast<size_t>(task.tokens * block_columns) * sizeof(float));
  write(task, sums);
}

template <class Codes>
void linear(const LinearTask& task) {
  const int64_t width = task.end - task.begin;
  float* rows = task.scratch + block_columns * block_depth;
  multiply_blocks(task, task.weight.cols, [&](float* to, int64_t from, int64_t count) {
    for (int64_t r = 0; r < width; ++r)
      dequantize<Codes>(task.weight, task.begin + r, from, count, rows + r * block_depth);
    pack_transposed(rows, block_depth, width, count, to, block_columns, count);
  });
}

template <class Codes>
void linear_gradient(const LinearTask& task) {
  const int64_t width = task.end - task.begin;
  multiply_blocks(task, task.weight.rows, [&](float* to, int64_t from, int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      float* row = to + r * block_columns;
      dequantize<Codes>(task.weight, from + r, task.begin, width, row);
      for (int64_t c = width; c < block_columns; ++c) row[c] = 0;
    }
  });
}

template <class Codes, int Tokens>
void dot(const LinearTask& task, int64_t row, float* sums) {
  const QuantizedWeight& weight = task.weight;
  const Codes codes = codes_of<Codes>(weight, row);
  Vector total[Tokens];
#pragma GCC unroll 8
  for (int t = 0; t < Tokens; ++t) total[t] = zero();
  for (int64_t group = 0; group < weight.groups; ++group) {
    Vector sum_of[Tokens];
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; ++t) sum_of[t] = zero();
    const int64_t end = (group + 1) * weight.group;
    int64_t c = group * weight.group;
    for (; c + lanes <= end; c += lanes) {
      const Vector code = codes.load(c);
#pragma GCC unroll 8
      for (int t = 0; t < Tokens; ++t) sum_of[t] = fma(code, load(task.x + t * task.x_stride + c), sum_of[t]);
    }
    if (c < end) {
      const Vector code = load_codes_part(codes, c, end - c);
#pragma GCC unroll 8
      for (int t = 0; t < Tokens; ++t)
        sum_of[t] = fma(code, load_part(task.x + t * task.x_stride + c, end - c), sum_of[t]);
    }
    const Vector scale = splat(weight.scales[row * weight.groups + group]);
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; ++t) total[t] = fma(scale, sum_of[t], total[t]);
  }
#pragma GCC unroll 8
  for (int t = 0; t < Tokens; ++t) sums[t * block_columns] = sum(total[t]);
}

template <class Codes>
void linear_skinny(const LinearTask& task) {
  constexpr void (*dots[])(const LinearTask&, int64_t, float*) = {dot<Codes, 1>, dot<Codes, 2>, dot<Codes, 3>,
                                                                  dot<Codes, 4>, dot<Codes, 5>, dot<Codes, 6>,
                                                                  dot<Codes, 7>, dot<Codes, 8>};
  alignas(64) float sums[max_skinny_tokens * block_columns];
  for (int64_t row = task.begin; row < task.end; ++row) dots[task.tokens - 1](task, row, sums + (row - task.begin));
  write(task, sums);
}

void to_float32(const uint16_t* from, int64_t count, float* to) {
  const auto* values = reinterpret_cast<const Bfloat*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(values[i]);
}

template <class Codes>
constexpr SchemeKernels kernels_of{linear<Codes>, linear_skinny<Codes>, linear_gradient<Codes>};

} // namespace

const QuantizedKernels& quantized_kernels() {
  static const QuantizedKernels kernels{kernels_of<Int8Codes>, kernels_of<Int4Codes>, to_float32};
  return kernels;
}

} // namespace fvlm::plugins::FVLM_LEVEL
