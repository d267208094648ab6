// norm_kernels.cpp: rmsnorm and layernorm, with the residual's addition in the same pass.
#include "row_loops.h"

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

template <class Element, bool Centered>
void forward_rows(const NormProblem& p, int64_t first, int64_t last) {
  const int64_t width = p.width;
  const auto* weight = static_cast<const Element*>(p.weight);
  const auto* bias = static_cast<const Element*>(p.bias);
  const float share = 1.0f / static_cast<float>(width);
  for (int64_t r = first; r < last; ++r) {
    const Element *x = row_of<const Element>(p.x, r), *residual = row_of<const Element>(p.residual, r);
    const Element* rest = row_of<const Element>(p.rest, r);
    Element *s = row_of<Element>(p.sum, r), *y = row_of<Element>(p.y, r), *sum_rest = row_of<Element>(p.sum_rest, r);
    Vector squares = zero(), total = zero();
    for (int64_t c = 0; c < width; c += lanes) {
      Vector v = load_at(x, c, width);
      if (residual) {
        Vector exact = v + load_at(residual, c, width);
        if (rest) exact += load_at(rest, c, width);
        store_at(s, c, width, exact);
        v = load_at(s, c, width); // as rounded: the backward sees no other
        if (sum_rest) store_at(sum_rest, c, width, exact - v);
      }
      squares = fma(v, v, squares);
      total += v;
    }
    if (residual) x = s;
    const float mean = Centered ? sum(total) * share : 0.0f;
    float variance = sum(squares) * share;
    if (Centered) { // again around the mean: x^2 - mean^2 would lose digits
      squares = zero();
      for (int64_t c = 0; c < width; c += lanes) {
        Vector v = load_at(x, c, width) - mean;
        if (c + lanes > width) v = iota() + static_cast<int32_t>(c) < static_cast<int32_t>(width) ? v : zero();
        squares = fma(v, v, squares);
      }
      variance = sum(squares) * share;
    }
    const float inverse = 1.0f / __builtin_sqrtf(variance + p.epsilon);
    if (p.inverse) p.inverse[r] = inverse;
    if (Centered && p.mean) p.mean[r] = mean;
    for (int64_t c = 0; c < width; c += lanes) {
      Vector v = load_at(x, c, width);
      if (Centered) v -= mean;
      v = v * inverse * load_at(weight, c, width);
      if (Centered && bias) v += load_at(bias, c, width);
      store_at(y, c, width, v);
    }
  }
}

template <class Element, bool Centered>
void backward_rows(const NormProblem& p, int64_t first, int64_t last, float* d_weight, float* d_bias) {
  const int64_t width = p.width;
  const auto* weight = static_cast<const Element*>(p.weight);
  const float share = 1.0f / static_cast<float>(width);
  clear(d_weight, width);
  clear(d_bias, width);
  for (int64_t r = first; r < last; ++r) {
    const Element *s = row_of<const Element>(p.s, r), *d_y = row_of<const Element>(p.d_y, r),
                  *d_sum = row_of<const Element>(p.d_sum, r);
    Element* d_x = row_of<Element>(p.d_x, r);
    const float inverse = p.inverse[r], mean = Centered ? p.mean[r] : 0.0f;
    Vector along = zero(), total = zero(); // of d_y weight with the normalised row, and with 1
    for (int64_t c = 0; c < width; c += lanes) {
      const Vector d = load_at(d_y, c, width), normal = (load_at(s, c, width) - mean) * inverse;
      const Vector g = d * load_at(weight, c, width);
      along = fma(g, normal, along);
      if (Centered) total += g;
      if (d_weight) store_at(d_weight, c, width, fma(d, normal, load_at(d_weight, c, width)));
      if (Centered && d_bias) store_at(d_bias, c, width, d + load_at(d_bias, c, width));
    }
    const float slope = sum(along) * share, shift = Centered ? sum(total) * share : 0.0f;
    for (int64_t c = 0; c < width; c += lanes) {
      const Vector normal = (load_at(s, c, width) - mean) * inverse;
      Vector d = (load_at(d_y, c, width) * load_at(weight, c, width) - normal * slope - shift) * inverse;
      if (d_sum) d += load_at(d_sum, c, width);
      store_at(d_x, c, width, d);
    }
  }
}

} // namespace

void norm_forward(const NormProblem& p, int64_t first, int64_t last) {
  if (p.bfloat) {
    p.centered ? forward_rows<Bfloat, true>(p, first, last) : forward_rows<Bfloat, false>(p, first, last);
  } else {
    p.centered ? forward_rows<float, true>(p, first, last) : forward_rows<float, false>(p, first, last);
  }
}

void norm_backward(const NormProblem& p, int64_t first, int64_t last, float* d_weight, float* d_bias) {
  if (p.bfloat) {
    p.centered ? backward_rows<Bfloat, true>(p, first, last, d_weight, d_bias)
               : backward_rows<Bfloat, false>(p, first, last, d_weight, d_bias);
  } else {
    p.centered ? backward_rows<float, true>(p, first, last, d_weight, d_bias)
               : backward_rows<float, false>(p, first, last, d_weight, d_bias);
  }
}

} // namespace fvlm::plugins::FVLM_LEVEL
