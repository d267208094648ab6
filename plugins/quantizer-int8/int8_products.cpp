// int8_products.cpp: products of float32 activations with int8 weights, compiled once per instruction set.
#include "int8_products.h"

#include "common/microkernel.h"
#include "common/transpose.h"

namespace fvlm::plugins::FVLM_LEVEL {

struct Code {
  int8_t value;
};

// Intrinsics, because gcc 12 compiles __builtin_convertvector of bytes to scalar code.
FVLM_INLINE Vector load(const Code* from) {
#if defined(__AVX512F__)
  __m128i bytes;
  std::memcpy(&bytes, from, lanes);
  return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
  __m128i bytes = _mm_setzero_si128();
  std::memcpy(&bytes, from, lanes);
  return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else
  return Vector{static_cast<float>(from[0].value), static_cast<float>(from[1].value), static_cast<float>(from[2].value),
                static_cast<float>(from[3].value)};
#endif
}

namespace {

const Code* codes_at(const Int8Weight& weight, int64_t row, int64_t column) {
  return reinterpret_cast<const Code*>(weight.codes) + row * weight.cols + column;
}

template <class Element>
void write(const LinearTask& task, const float* sums, bool scaled) {
  const int64_t width = task.end - task.begin;
  alignas(64) float scale[block_columns], bias[block_columns];
  for (int64_t c = 0; c < block_columns; ++c) {
    scale[c] = scaled && c < width ? task.weight.scales[task.begin + c] : 1;
    bias[c] = task.bias && c < width ? to_float(static_cast<const Element*>(task.bias)[task.begin + c]) : 0;
  }
  for (int64_t t = 0; t < task.tokens; ++t) {
    Element* y = static_cast<Element*>(task.y) + t * task.y_stride + task.begin;
    for (int64_t c = 0; c < width; c += lanes) {
      const Vector value = load(sums + t * block_columns + c) * load(scale + c) + load(bias + c);
      if (c + lanes <= width) {
        store(y + c, value);
      } else {
        store_part(y + c, value, width - c);
      }
    }
  }
}

// Multiplies x[t, 0 .. depth) with a weight whose blocks pack(weights, from, count) converts to [count, block_columns]
// floats.
template <class Pack>
void multiply_blocks(const LinearTask& task, int64_t depth, bool scaled, const Pack& pack) {
  float *weights = task.scratch, *sums = task.scratch + block_columns * block_depth;
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
  if (task.bfloat16) {
    write<Bfloat>(task, sums, scaled);
  } else {
    write<float>(task, sums, scaled);
  }
}

void linear(const LinearTask& task) {
  multiply_blocks(task, task.weight.cols, true, [&](float* to, int64_t from, int64_t count) {
    pack_transposed(codes_at(task.weight, task.begin, from), task.weight.cols, task.end - task.begin, count, to,
                    block_columns, count);
  });
}

void linear_gradient(const LinearTask& task) {
  const int64_t width = task.end - task.begin, padded = (width + lanes - 1) / lanes * lanes;
  multiply_blocks(task, task.weight.rows, false, [&](float* to, int64_t from, int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      pack_rows(codes_at(task.weight, from + r, task.begin), task.weight.cols, 1, width, task.weight.scales[from + r],
                to + r * block_columns, block_columns, padded);
    }
  });
}

template <int Tokens>
void dot(const LinearTask& task, int64_t row, float* sums) {
  Vector sum_of[Tokens];
#pragma GCC unroll 8
  for (int t = 0; t < Tokens; ++t) sum_of[t] = zero();
  const Code* codes = codes_at(task.weight, row, 0);
  int64_t c = 0;
  for (; c + lanes <= task.weight.cols; c += lanes) {
    const Vector code = load(codes + c);
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; ++t) sum_of[t] = fma(code, load(task.x + t * task.x_stride + c), sum_of[t]);
  }
  if (c < task.weight.cols) {
    const int64_t rest = task.weight.cols - c;
    const Vector code = load_part(codes + c, rest);
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; ++t) sum_of[t] = fma(code, load_part(task.x + t * task.x_stride + c, rest), sum_of[t]);
  }
#pragma GCC unroll 8
  for (int t = 0; t < Tokens; ++t) sums[t * block_columns] = sum(sum_of[t]);
}

void linear_skinny(const LinearTask& task) {
  alignas(64) float sums[max_skinny_tokens * block_columns];
  for (int64_t row = task.begin; row < task.end; ++row) {
    float* to = sums + (row - task.begin);
    switch (task.tokens) {
    case 1:
      dot<1>(task, row, to);
      break;
    case 2:
      dot<2>(task, row, to);
      break;
    case 3:
      dot<3>(task, row, to);
      break;
    case 4:
      dot<4>(task, row, to);
      break;
    case 5:
      dot<5>(task, row, to);
      break;
    case 6:
      dot<6>(task, row, to);
      break;
    case 7:
      dot<7>(task, row, to);
      break;
    default:
      dot<8>(task, row, to);
      break;
    }
  }
  if (task.bfloat16) {
    write<Bfloat>(task, sums, true);
  } else {
    write<float>(task, sums, true);
  }
}

void to_float32(const uint16_t* from, int64_t count, float* to) {
  const auto* values = reinterpret_cast<const Bfloat*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(values[i]);
}

} // namespace

const Int8Kernels& int8_kernels() {
  static const Int8Kernels kernels{linear, linear_skinny, linear_gradient, to_float32};
  return kernels;
}

} // namespace fvlm::plugins::FVLM_LEVEL
