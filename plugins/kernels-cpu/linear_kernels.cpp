// linear_kernels.cpp: linears of a few rows, which read each weight once, at the speed of memory. gcc 12 warns of the
// operand that its own _mm512_reduce_add_ps() leaves undefined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "linear_loops.h"

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

// x, or what linear_widen made of it.
template <class Element>
FVLM_INLINE Rows widened_rows(const LinearProblem& p) {
  return sizeof(Element) == sizeof(float) ? p.x : Rows{p.converted, p.inner};
}

template <class WeightElement, class Element, int RowCount, int Features>
void linear_tile(const LinearProblem& p, int64_t row, int64_t feature) {
  const WeightElement* weight = static_cast<const WeightElement*>(p.weight) + feature * p.inner;
  const float* x = row_of<const float>(widened_rows<Element>(p), row);
  const int64_t x_row = widened_rows<Element>(p).row;
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
      const Vector value = load_of(x + r * x_row + i);
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
  store_outputs<Element>(p, row, feature, sums);
}

template <class WeightElement, class Element>
struct PlainTile {
  template <int RowCount, int Features>
  static void run(const LinearProblem& p, int64_t row, int64_t feature) {
    linear_tile<WeightElement, Element, RowCount, Features>(p, row, feature);
  }
};

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

void linear_few_rows(const LinearProblem& p, int64_t first, int64_t last) {
  if (p.has_bfloat16_weight) return by_tiles<PlainTile<Bfloat, float>>(p, first, last);
  if (!p.is_bfloat16) return by_tiles<PlainTile<float, float>>(p, first, last);
  p.uses_pairs ? few_rows_of_pairs(p, first, last) : by_tiles<PlainTile<Bfloat, Bfloat>>(p, first, last);
}

void linear_widen(const LinearProblem& p) {
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t i = 0; i < p.inner; i += lanes)
      store_at(p.converted + r * p.inner, i, p.inner, load_at(row_of<const Bfloat>(p.x, r), i, p.inner));
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
