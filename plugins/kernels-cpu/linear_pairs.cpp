// linear_pairs.cpp: linears of bfloat16 with the instruction that multiplies pairs of elements and adds them to float32
// (avx512_bf16). It reads and gives 0 for subnormal numbers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "common/microkernel.h"
#include "common/transpose.h"
#include "linear_loops.h"

namespace fvlm::plugins::FVLM_LEVEL {

#if defined(__AVX512F__)

// For functions that has_bfloat16_products() allows to call.
#define FVLM_PAIRS __attribute__((target("avx512bf16")))

namespace {

constexpr int64_t pair_lanes = 2 * lanes; // elements of a vector
constexpr int64_t block_depth = 256;      // pairs at a time; see linear_many_rows.cpp

// Adds the products of the columns [i, i + pair_lanes), or of those that the mask selects.
template <int RowCount, int Features>
FVLM_INLINE FVLM_PAIRS void add_pairs(const Bfloat* weight, int64_t weight_row, const Bfloat* x, int64_t x_row,
                                      __mmask32 mask, Vector (&sums)[RowCount][Features]) {
  __m512i weights[Features];
#pragma GCC unroll 4
  for (int f = 0; f < Features; ++f) {
    __builtin_prefetch(weight + (f + prefetched_tiles * Features) * weight_row);
    weights[f] = _mm512_maskz_loadu_epi16(mask, weight + f * weight_row);
  }
#pragma GCC unroll 4
  for (int r = 0; r < RowCount; ++r) {
    const __m512i value = _mm512_maskz_loadu_epi16(mask, x + r * x_row);
#pragma GCC unroll 4
    for (int f = 0; f < Features; ++f)
      sums[r][f] = (Vector)_mm512_dpbf16_ps((__m512)sums[r][f], (__m512bh)weights[f], (__m512bh)value);
  }
}

struct PairTile {
  template <int RowCount, int Features>
  FVLM_PAIRS static void run(const LinearProblem& p, int64_t row, int64_t feature) {
    const Bfloat* weight = static_cast<const Bfloat*>(p.weight) + feature * p.inner;
    const Bfloat* x = row_of<const Bfloat>(p.x, row);
    Vector sums[RowCount][Features];
#pragma GCC unroll 4
    for (int r = 0; r < RowCount; ++r)
#pragma GCC unroll 4
      for (int f = 0; f < Features; ++f) sums[r][f] = zero();
    int64_t i = 0;
    for (; i + pair_lanes <= p.inner; i += pair_lanes) add_pairs(weight + i, p.inner, x + i, p.x.row, ~0u, sums);
    if (i < p.inner) add_pairs(weight + i, p.inner, x + i, p.x.row, (1u << (p.inner - i)) - 1, sums);
    store_outputs<Bfloat>(p, row, feature, sums);
  }
};

// sums[Features][tile_columns] += weights [Features, depth] packed [depth][tile_columns], in pairs.
template <int Features, int Vectors>
FVLM_PAIRS void multiply_pair_tile(const Bfloat* weight, int64_t weight_row, const float* packed, int64_t depth,
                                   bool adds, float* sums) {
  __m512 tile[Features][Vectors];
#pragma GCC unroll 8
  for (int f = 0; f < Features; ++f)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v)
      tile[f][v] = adds ? _mm512_loadu_ps(sums + f * tile_columns + v * lanes) : _mm512_setzero_ps();
  for (int64_t i = 0; i < depth; ++i) {
    __m512i values[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) values[v] = _mm512_loadu_si512(packed + i * tile_columns + v * lanes);
#pragma GCC unroll 8
    for (int f = 0; f < Features; ++f) {
      int32_t pair;
      std::memcpy(&pair, weight + f * weight_row + 2 * i, sizeof pair);
      const __m512i weights = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v)
        tile[f][v] = _mm512_dpbf16_ps(tile[f][v], (__m512bh)weights, (__m512bh)values[v]);
    }
  }
#pragma GCC unroll 8
  for (int f = 0; f < Features; ++f)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) _mm512_storeu_ps(sums + f * tile_columns + v * lanes, tile[f][v]);
}

using MultiplyTile = void (*)(const Bfloat*, int64_t, const float*, int64_t, bool, float*);

template <int Vectors>
MultiplyTile tile_of(int64_t features) {
  static constexpr MultiplyTile tiles[] = {multiply_pair_tile<1, Vectors>, multiply_pair_tile<2, Vectors>,
                                           multiply_pair_tile<3, Vectors>, multiply_pair_tile<4, Vectors>,
                                           multiply_pair_tile<5, Vectors>, multiply_pair_tile<6, Vectors>};
  return tiles[features - 1];
}

MultiplyTile tile_of(int64_t features, int vectors) {
  switch (vectors) {
  case 4:
    return tile_of<4>(features);
  case 3:
    return tile_of<3>(features);
  case 2:
    return tile_of<2>(features);
  default:
    return tile_of<1>(features);
  }
}

} // namespace

void few_rows_of_pairs(const LinearProblem& p, int64_t first, int64_t last) {
  by_tiles<PairTile>(p, first, last);
}

void pack_pairs(const LinearProblem& p, int64_t block) {
  const int64_t row = block * tile_columns, left = p.rows - row, pairs = p.inner / 2;
  const int64_t rows = left < tile_columns ? left : tile_columns;
  float* to = p.converted + block * pairs * tile_columns;
  for (int64_t r = 0; r < rows; r += lanes)
    for (int64_t i = 0; i < pairs; i += lanes) {
      const int64_t count = pairs - i < lanes ? pairs - i : lanes;
      const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
      Vector values[lanes];
      for (int lane = 0; lane < lanes; ++lane)
        values[lane] = r + lane < rows
                           ? (Vector)_mm512_maskz_loadu_ps(mask, row_of<const Bfloat>(p.x, row + r + lane) + 2 * i)
                           : zero();
      transpose(values);
      for (int64_t pair = 0; pair < count; ++pair) store(to + (i + pair) * tile_columns + r, values[pair]);
    }
}

void multiply_pairs(const LinearProblem& p, const float* packed, int64_t feature, int64_t features, int vectors,
                    bool fetches_next, float* sums) {
  const Bfloat* weight = static_cast<const Bfloat*>(p.weight) + feature * p.inner;
  const int64_t pairs = p.inner / 2;
  for (int64_t from = 0; from < pairs; from += block_depth) {
    const int64_t depth = pairs - from < block_depth ? pairs - from : block_depth;
    for (int64_t f = 0; f < features; f += tile_rows) {
      if (fetches_next)
        for (int64_t next = f; next < f + tile_rows; ++next)
          for (int64_t i = 0; i < depth; i += lanes)
            __builtin_prefetch(weight + (next + group_features) * p.inner + 2 * (from + i));
      const int64_t count = features - f < tile_rows ? features - f : tile_rows;
      tile_of(count, vectors)(weight + f * p.inner + 2 * from, p.inner, packed + from * tile_columns, depth, from > 0,
                              sums + f * tile_columns);
    }
  }
}

#else

void few_rows_of_pairs(const LinearProblem&, int64_t, int64_t) {}
void pack_pairs(const LinearProblem&, int64_t) {}
void multiply_pairs(const LinearProblem&, const float*, int64_t, int64_t, int, bool, float*) {}

#endif

} // namespace fvlm::plugins::FVLM_LEVEL
