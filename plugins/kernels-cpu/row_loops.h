// row_loops.h: shared by the row kernels: loads and stores that handle the last, partial vector of a row, and the
// functions of the table.
#pragma once

#include "common/simd.h"
#include "row_kernels.h"

namespace fvlm::plugins::FVLM_LEVEL {

template <class Element>
FVLM_INLINE Element* row_of(const Rows& rows, int64_t r) {
  return rows.data ? static_cast<Element*>(rows.data) + r * rows.row : nullptr;
}

template <class Element>
FVLM_INLINE Vector load_at(const Element* row, int64_t c, int64_t width) {
  return c + lanes <= width ? load(row + c) : load_part(row + c, width - c);
}

template <class Element>
FVLM_INLINE void store_at(Element* row, int64_t c, int64_t width, Vector v) {
  if (c + lanes <= width) {
    store(row + c, v);
  } else {
    store_part(row + c, v, width - c);
  }
}

inline void clear(float* sums, int64_t width) {
  if (!sums) return;
  for (int64_t c = 0; c < width; ++c) sums[c] = 0;
}

void norm_forward(const NormProblem& problem, int64_t first, int64_t last);
void norm_backward(const NormProblem& problem, int64_t first, int64_t last, float* d_weight, float* d_bias);
void swiglu_forward(const SwigluProblem& problem, int64_t first, int64_t last);
void swiglu_backward(const SwigluProblem& problem, int64_t first, int64_t last);
void gelu_forward(const GeluProblem& problem, int64_t first, int64_t last);
void gelu_backward(const GeluProblem& problem, int64_t first, int64_t last, float* d_bias);
void layerscale_forward(const LayerscaleProblem& problem, int64_t first, int64_t last);
void layerscale_backward(const LayerscaleProblem& problem, int64_t first, int64_t last, float* d_scale);
void rope(const RopeProblem& problem, int64_t first, int64_t last);
void linear_few_rows(const LinearProblem& problem, int64_t first, int64_t last);
void linear_widen(const LinearProblem& problem);
void linear_pack(const LinearProblem& problem, int64_t first, int64_t last);
void linear_many_rows(const LinearProblem& problem, int64_t first, int64_t last);
void linear_input_gradient(const LinearGradientProblem& problem, int64_t first, int64_t last);
void linear_weight_gradient(const LinearGradientProblem& problem, int64_t first, int64_t last);

} // namespace fvlm::plugins::FVLM_LEVEL
