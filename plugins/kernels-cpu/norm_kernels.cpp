// norm_kernels.cpp: rmsnorm and layernorm, fused with the addition of the residual.
#include "row_loops.h"

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

// Row r of a norm, which may be one of several heads in a row of the operand.
template <class Element>
FVLM_INLINE Element* norm_row(const NormProblem& p, const Rows& rows, int64_t r) {
  if (p.heads == 1) return row_of<Element>(rows, r);
  return rows.data ? static_cast<Element*>(rows.data) + r / p.heads * rows.row + r % p.heads * p.width : nullptr;
}

template <class Element, bool Centered>
void forward_rows(const NormProblem& p, int64_t first, int64_t last) {
  const int64_t width = p.width;
  const auto* weight = static_cast<const Element*>(p.weight);
  const auto* bias = static_cast<const Element*>(p.bias);
  const float inverse_width = 1.0f / static_cast<float>(width);
  for (int64_t r = first; r < last; ++r) {
    const Element *x = norm_row<const Element>(p, p.x, r), *residual = norm_row<const Element>(p, p.residual, r);
    const Element* compensation = norm_row<const Element>(p, p.compensation, r);
    Element *s = norm_row<Element>(p, p.sum, r), *y = norm_row<Element>(p, p.y, r),
            *sum_compensation = norm_row<Element>(p, p.sum_compensation, r);
    Vector squares = zero(), total = zero();
    for (int64_t c = 0; c < width; c += lanes) {
      Vector v = load_at(x, c, width);
      if (residual) {
        Vector unrounded = v + load_at(residual, c, width);
        if (compensation) unrounded += load_at(compensation, c, width);
        store_at(s, c, width, unrounded);
        v = load_at(s, c, width); // the rounded sum, which backward uses too
        if (sum_compensation) store_at(sum_compensation, c, width, unrounded - v);
      }
      squares = fma(v, v, squares);
      total += v;
    }
    if (residual) x = s;
    const float mean = Centered ? sum(total) * inverse_width : 0.0f;
    float variance = sum(squares) * inverse_width;
    if (Centered) { // a second pass around the mean: E[x^2] - mean^2 would cancel
      squares = zero();
      for (int64_t c = 0; c < width; c += lanes) {
        Vector v = load_at(x, c, width) - mean;
        if (c + lanes > width) v = iota() + static_cast<int32_t>(c) < static_cast<int32_t>(width) ? v : zero();
        squares = fma(v, v, squares);
      }
      variance = sum(squares) * inverse_width;
    }
    const float rstd = 1.0f / __builtin_sqrtf(variance + p.epsilon);
    if (p.rstd) p.rstd[r] = rstd;
    if (Centered && p.mean) p.mean[r] = mean;
    for (int64_t c = 0; c < width; c += lanes) {
      Vector v = load_at(x, c, width);
      if (Centered) v -= mean;
      v = v * rstd * load_at(weight, c, width);
      if (Centered && bias) v += load_at(bias, c, width);
      store_at(y, c, width, v);
    }
  }
}

template <class Element, bool Centered>
void backward_rows(const NormProblem& p, int64_t first, int64_t last, float* d_weight, float* d_bias) {
  const int64_t width = p.width;
  const auto* weight = static_cast<const Element*>(p.weight);
  const float inverse_width = 1.0f / static_cast<float>(width);
  clear(d_weight, width);
  clear(d_bias, width);
  for (int64_t r = first; r < last; ++r) {
    const Element *s = norm_row<const Element>(p, p.s, r), *d_y = norm_row<const Element>(p, p.d_y, r),
                  *d_sum = norm_row<const Element>(p, p.d_sum, r);
    Element* d_x = norm_row<Element>(p, p.d_x, r);
    const float rstd = p.rstd[r], mean = Centered ? p.mean[r] : 0.0f;
    // Sums over the row of g * normalized and of g, where g = d_y * weight.
    Vector g_normalized = zero(), total = zero();
    for (int64_t c = 0; c < width; c += lanes) {
      const Vector d = load_at(d_y, c, width), normalized = (load_at(s, c, width) - mean) * rstd;
      const Vector g = d * load_at(weight, c, width);
      g_normalized = fma(g, normalized, g_normalized);
      if (Centered) total += g;
      if (d_weight) store_at(d_weight, c, width, fma(d, normalized, load_at(d_weight, c, width)));
      if (Centered && d_bias) store_at(d_bias, c, width, d + load_at(d_bias, c, width));
    }
    const float mean_g_normalized = sum(g_normalized) * inverse_width,
                mean_g = Centered ? sum(total) * inverse_width : 0.0f;
    for (int64_t c = 0; c < width; c += lanes) {
      const Vector normalized = (load_at(s, c, width) - mean) * rstd;
      Vector d = (load_at(d_y, c, width) * load_at(weight, c, width) - normalized * mean_g_normalized - mean_g) * rstd;
      if (d_sum) d += load_at(d_sum, c, width);
      store_at(d_x, c, width, d);
    }
  }
}

} // namespace

void norm_forward(const NormProblem& p, int64_t first, int64_t last) {
  if (p.is_bfloat16) {
    p.centered ? forward_rows<Bfloat, true>(p, first, last) : forward_rows<Bfloat, false>(p, first, last);
  } else {
    p.centered ? forward_rows<float, true>(p, first, last) : forward_rows<float, false>(p, first, last);
  }
}

void norm_backward(const NormProblem& p, int64_t first, int64_t last, float* d_weight, float* d_bias) {
  if (p.is_bfloat16) {
    p.centered ? backward_rows<Bfloat, true>(p, first, last, d_weight, d_bias)
               : backward_rows<Bfloat, false>(p, first, last, d_weight, d_bias);
  } else {
    p.centered ? backward_rows<float, true>(p, first, last, d_weight, d_bias)
               : backward_rows<float, false>(p, first, last, d_weight, d_bias);
  }
}

} // namespace fvlm::plugins::FVLM_LEVEL
