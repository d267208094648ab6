// linear_loops.h: shared by the kernels of linears.
#pragma once

#include "common/transpose.h"
#include "row_loops.h"

namespace fvlm::plugins::FVLM_LEVEL {

// Rows and features whose sums are in registers at a time, together with the vectors that they read.
constexpr int row_tile = 4;
#if defined(__AVX512F__)
constexpr int feature_tile = 4;
#else
constexpr int feature_tile = 2;
#endif
// The weights of so many tiles further are fetched from memory meanwhile, again for each tile of rows, so that the
// requests are spread over its time. The processor by itself stops at each page, and waits for additions before it
// loads.
constexpr int prefetched_tiles = 2;

// Of many rows: features whose sums are kept for a block of rows: whole tiles, and whole vectors in each of y's rows.
constexpr int64_t group_features = 48;

// One sum of a tile, which becomes an element of y.
template <class Element>
FVLM_INLINE void store_output(const LinearProblem& p, int64_t row, int64_t feature, float value) {
  if (p.bias) value += to_float(static_cast<const Element*>(p.bias)[feature]);
  if (p.residual.data) value += to_float(row_of<const Element>(p.residual, row)[feature]);
  Element* y = row_of<Element>(p.y, row) + feature;
  if constexpr (sizeof(Element) == sizeof(float)) {
    *y = value;
  } else {
    *y = to_bfloat(value);
  }
}

// The sums of all vectors of a tile, which become elements of y.
template <class Element, int RowCount, int Features>
FVLM_INLINE void store_outputs(const LinearProblem& p, int64_t row, int64_t feature,
                               Vector (&sums)[RowCount][Features]) {
  float values[RowCount][Features];
  if constexpr (RowCount * Features % lanes == 0) {
    for (int first = 0; first < RowCount * Features; first += lanes) {
      Vector some[lanes];
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) some[i] = sums[(first + i) / Features][(first + i) % Features];
      store(values[0] + first, sums_of(some));
    }
  } else {
#pragma GCC unroll 4
    for (int r = 0; r < RowCount; ++r)
#pragma GCC unroll 4
      for (int f = 0; f < Features; ++f) values[r][f] = sum(sums[r][f]);
  }
  for (int r = 0; r < RowCount; ++r)
    for (int f = 0; f < Features; ++f) store_output<Element>(p, row + r, feature + f, values[r][f]);
}

// Calls Tile::run<rows, features>(p, row, feature) for all rows and the features [first, last).
template <class Tile, int Features>
FVLM_INLINE void by_row_tiles(const LinearProblem& p, int64_t feature) {
  int64_t row = 0;
  for (; row + row_tile <= p.rows; row += row_tile) Tile::template run<row_tile, Features>(p, row, feature);
  switch (p.rows - row) {
  case 3:
    return Tile::template run<3, Features>(p, row, feature);
  case 2:
    return Tile::template run<2, Features>(p, row, feature);
  case 1:
    return Tile::template run<1, Features>(p, row, feature);
  default:
    return;
  }
}

template <class Tile>
inline void by_tiles(const LinearProblem& p, int64_t first, int64_t last) {
  int64_t feature = first;
  for (; feature + feature_tile <= last; feature += feature_tile) by_row_tiles<Tile, feature_tile>(p, feature);
  for (; feature < last; ++feature) by_row_tiles<Tile, 1>(p, feature);
}

// See linear_pairs.cpp. Where uses_pairs is never set, they do nothing.
void few_rows_of_pairs(const LinearProblem& problem, int64_t first, int64_t last);
void pack_pairs(const LinearProblem& problem, int64_t block);
// sums[feature][row] of some features and a block of rows, whose packed pairs are given; rows are whole vectors.
void multiply_pairs(const LinearProblem& problem, const float* packed, int64_t feature, int64_t features, int vectors,
                    bool fetches_next, float* sums);

} // namespace fvlm::plugins::FVLM_LEVEL
