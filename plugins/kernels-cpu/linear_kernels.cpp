// linear_kernels.cpp: linears of a few rows, which read each weight once, at the speed of memory. gcc 12 warns of the
// operand that its own _mm512_reduce_add_ps() leaves undefined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "row_loops.h"

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

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

// One sum of a tile, which becomes an element of y.
template <class Element>
FVLM_INLINE void store_output(const LinearProblem& p, int64_t row, int64_t feature, float value) {
  if (p.bias) value += to_float(static_cast<const Element*>(p.bias)[feature]);
  if (p.residual.data) value += to_float(row_of<const Element>(p.residual, row)[feature]);
  Element* y = row_of<Element>(p.y, row) + feature;
  if constexpr (sizeof(Element) == sizeof(float)) {
    *y = value;
  } else {
    store_part(y, splat(value), 1);
  }
}

template <class Element, int RowCount, int Features>
void linear_tile(const LinearProblem& p, int64_t row, int64_t feature) {
  const Element* weight = static_cast<const Element*>(p.weight) + feature * p.inner;
  const float* x = p.x + row * p.x_row;
  Vector sums[RowCount][Features];
#pragma GCC unroll 4
  for (int r = 0; r < RowCount; ++r)
#pragma GCC unroll 4
    for (int f = 0; f < Features; ++f) sums[r][f] = zero();
  const auto add = [&](const auto& load_of, int64_t i) __attribute__((always_inline)) {
    Vector weights[Features];
#pragma GCC unroll 4
    for (int f = 0; f < Features; ++f) weights[f] = load_of(weight + f * p.inner + i);
#pragma GCC unroll 4
    for (int r = 0; r < RowCount; ++r) {
      const Vector value = load_of(x + r * p.x_row + i);
#pragma GCC unroll 4
      for (int f = 0; f < Features; ++f) sums[r][f] = fma(weights[f], value, sums[r][f]);
    }
  };
  int64_t i = 0;
  for (; i + lanes <= p.inner; i += lanes) {
#pragma GCC unroll 4
    for (int f = 0; f < Features; ++f) __builtin_prefetch(weight + (f + prefetched_tiles * Features) * p.inner + i);
    add([](const auto* from) { return load(from); }, i);
  }
  if (i < p.inner) add([count = p.inner - i](const auto* from) { return load_part(from, count); }, i);
#pragma GCC unroll 4
  for (int r = 0; r < RowCount; ++r)
#pragma GCC unroll 4
    for (int f = 0; f < Features; ++f) store_output<Element>(p, row + r, feature + f, sum(sums[r][f]));
}

template <class Element, int Features>
FVLM_INLINE void linear_features(const LinearProblem& p, int64_t feature) {
  int64_t row = 0;
  for (; row + row_tile <= p.rows; row += row_tile) linear_tile<Element, row_tile, Features>(p, row, feature);
  switch (p.rows - row) {
  case 3:
    return linear_tile<Element, 3, Features>(p, row, feature);
  case 2:
    return linear_tile<Element, 2, Features>(p, row, feature);
  case 1:
    return linear_tile<Element, 1, Features>(p, row, feature);
  default:
    return;
  }
}

template <class Element>
void linear_rows(const LinearProblem& p, int64_t first, int64_t last) {
  int64_t feature = first;
  for (; feature + feature_tile <= last; feature += feature_tile) linear_features<Element, feature_tile>(p, feature);
  for (; feature < last; ++feature) linear_features<Element, 1>(p, feature);
}

// d_x of some rows and a vector of columns.
template <int RowCount>
FVLM_INLINE void input_gradient_tile(const LinearGradientProblem& p, int64_t row, int64_t column) {
  Vector sums[RowCount];
#pragma GCC unroll 4
  for (int r = 0; r < RowCount; ++r) sums[r] = zero();
  for (int64_t f = 0; f < p.width; ++f) {
    const Vector weights = load_at(p.weight + f * p.inner, column, p.inner);
#pragma GCC unroll 4
    for (int r = 0; r < RowCount; ++r) sums[r] = fma(splat(row_of<const float>(p.d_y, row + r)[f]), weights, sums[r]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < RowCount; ++r) store_at(row_of<float>(p.d_x, row + r), column, p.inner, sums[r]);
}

} // namespace

void linear_forward(const LinearProblem& p, int64_t first, int64_t last) {
  p.is_bfloat16 ? linear_rows<Bfloat>(p, first, last) : linear_rows<float>(p, first, last);
}

void linear_widen(const LinearProblem& p, const Rows& x, float* to) {
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t i = 0; i < p.inner; i += lanes)
      store_at(to + r * p.inner, i, p.inner, load_at(row_of<const Bfloat>(x, r), i, p.inner));
}

void linear_input_gradient(const LinearGradientProblem& p, int64_t first, int64_t last) {
  for (int64_t column = first * lanes; column < last * lanes && column < p.inner; column += lanes) {
    int64_t row = 0;
    for (; row + row_tile <= p.rows; row += row_tile) input_gradient_tile<row_tile>(p, row, column);
    for (; row < p.rows; ++row) input_gradient_tile<1>(p, row, column);
  }
}

void linear_weight_gradient(const LinearGradientProblem& p, int64_t first, int64_t last) {
  for (int64_t f = first; f < last; ++f) {
    float* d_weight = p.d_weight + f * p.inner;
    for (int64_t i = 0; i < p.inner; i += lanes) {
      Vector sums = p.accumulate ? load_at(d_weight, i, p.inner) : zero();
      for (int64_t r = 0; r < p.rows; ++r)
        sums = fma(splat(row_of<const float>(p.d_y, r)[f]), load_at(row_of<const float>(p.x, r), i, p.inner), sums);
      store_at(d_weight, i, p.inner, sums);
    }
    if (!p.d_bias) continue;
    float total = p.accumulate ? p.d_bias[f] : 0;
    for (int64_t r = 0; r < p.rows; ++r) total += row_of<const float>(p.d_y, r)[f];
    p.d_bias[f] = total;
  }
}

} // namespace fvlm::plugins::FVLM_LEVEL
