// microkernel.h: matrix products of small tiles whose accumulators stay in registers (GEMM microkernels).
#pragma once

#include "common/simd.h"

namespace fvlm::plugins::FVLM_LEVEL {

// The largest tile of C: with one row of b and one element of a it fills the register file, and it is large enough that
// consecutive additions to an accumulator do not wait for each other.
constexpr int tile_rows = 6;
#if defined(__AVX512F__)
constexpr int tile_vectors = 4;
#else
constexpr int tile_vectors = 2;
#endif
constexpr int tile_columns = tile_vectors * lanes;

// The operands of c = a b or c += a b: a [rows, depth] with any strides; b [depth, columns] and c [rows, columns] with
// contiguous rows. Columns are whole vectors.
struct Product {
  int64_t depth;
  const float* a;
  int64_t a_row, a_depth;
  const float* b;
  int64_t b_depth;
  float* c;
  int64_t c_row;
};

template <int Rows, int Vectors>
FVLM_INLINE void accumulate(Vector (&tile)[Rows][Vectors], int64_t depth, const float* a, int64_t a_row,
                            int64_t a_depth, const float* b, int64_t b_depth) {
  for (int64_t p = 0; p < depth; ++p) {
    Vector row[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) row[v] = load(b + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Vector element = splat(a[r * a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) tile[r][v] = fma(element, row[v], tile[r][v]);
    }
    a += a_depth;
    b += b_depth;
  }
}

template <int Rows, int Vectors, bool Add>
[[gnu::noinline]] void multiply_tile(const Product& p) {
  Vector tile[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) tile[r][v] = Add ? load(p.c + r * p.c_row + v * lanes) : zero();
  accumulate(tile, p.depth, p.a, p.a_row, p.a_depth, p.b, p.b_depth);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) store(p.c + r * p.c_row + v * lanes, tile[r][v]);
}

template <int Rows, bool Add>
FVLM_INLINE void multiply_rows(const Product& p, int vectors) {
  if constexpr (tile_vectors == 4) {
    if (vectors == 4) return multiply_tile<Rows, 4, Add>(p);
    if (vectors == 3) return multiply_tile<Rows, 3, Add>(p);
  }
  if (vectors == 2) return multiply_tile<Rows, 2, Add>(p);
  multiply_tile<Rows, 1, Add>(p);
}

// One tile of at most tile_rows x tile_vectors.
template <bool Add>
FVLM_INLINE void multiply_tile(const Product& p, int64_t rows, int vectors) {
  switch (rows) {
  case 6:
    return multiply_rows<6, Add>(p, vectors);
  case 5:
    return multiply_rows<5, Add>(p, vectors);
  case 4:
    return multiply_rows<4, Add>(p, vectors);
  case 3:
    return multiply_rows<3, Add>(p, vectors);
  case 2:
    return multiply_rows<2, Add>(p, vectors);
  default:
    return multiply_rows<1, Add>(p, vectors);
  }
}

// Any number of rows and vectors.
template <bool Add>
inline void multiply(const Product& whole, int64_t rows, int64_t vectors) {
  for (int64_t v = 0; v < vectors; v += tile_vectors) {
    const int width = static_cast<int>(vectors - v < tile_vectors ? vectors - v : tile_vectors);
    Product p = whole;
    p.b += v * lanes;
    p.c += v * lanes;
    for (int64_t r = 0; r < rows; r += tile_rows) {
      multiply_tile<Add>(p, rows - r < tile_rows ? rows - r : tile_rows, width);
      p.a += tile_rows * p.a_row;
      p.c += tile_rows * p.c_row;
    }
  }
}

} // namespace fvlm::plugins::FVLM_LEVEL
