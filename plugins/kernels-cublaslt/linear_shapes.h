// linear_shapes.h: what a linear's query asks for, and the shapes of its products for each kind of kernel.
#pragma once
#include "common/gelu_form.h"
#include "gemm_gelu.h"
#include "gemm_skinny.h"
#include "gemm_weight_gradient.h"
#include "matmul.h"
#include "narrow_gradients.h"

#include <algorithm>
#include <cstdint>

namespace fvlm::plugins {

using std::int64_t;

inline bool has_backward(const fvlm_kernels_query& query) {
  return query.options & FVLM_WITH_BACKWARD;
}
inline bool has_bias(const fvlm_kernels_query& query) {
  return query.options & FVLM_WITH_BIAS;
}
inline bool has_residual(const fvlm_kernels_query& query) {
  return query.options & FVLM_WITH_RESIDUAL;
}
inline bool keeps_compensation(const fvlm_kernels_query& query) {
  return query.options & FVLM_COMPENSATED;
}
inline bool gives_both_gradients(const fvlm_kernels_query& query) {
  return query.options & FVLM_BOTH_GRADIENTS;
}
inline bool is_fp8(const fvlm_kernels_query& query) {
  return query.options & FVLM_WITH_FP8;
}
// How many of the last numbers that its product sums over stand as two each; and what a row of those takes.
inline int64_t pairs_of(const fvlm_kernels_query& query) {
  return query.options & FVLM_FP8_PAIRS ? query.pairs : 0;
}
inline int64_t with_pairs(const fvlm_kernels_query& query, int64_t features) {
  return features + 3 * pairs_of(query);
}
// Whether the call of a query with pairs is the forward.
inline bool sums_over_inner(const fvlm_kernels_query& query) {
  return !has_backward(query) || (query.options & FVLM_WITH_SWIGLU);
}
// With what only kernels of this plugin do along with a product: those for few rows, or with SwiGLU in training.
inline bool is_extended(const fvlm_kernels_query& query) {
  return query.options & (FVLM_WITH_NORM | FVLM_WITH_SWIGLU | FVLM_SWIGLU_INPUT);
}
// With compensation the forward is always a skinny GEMM.
inline bool has_plan(const fvlm_kernels_query& query) {
  return (!keeps_compensation(query) || has_backward(query)) && !is_extended(query);
}

inline bool is_exact(const fvlm_kernels_query& query) {
  return !(query.options & gelu_forms);
}

inline sdk::Failure not_prepared(const fvlm_kernels_query& query) {
  return {FVLM_ERROR_ARGUMENT, "prepare() was not called for %lld rows of %lld -> %lld",
          static_cast<long long>(query.rows), static_cast<long long>(query.inner), static_cast<long long>(query.width)};
}

inline void require_backward(const fvlm_kernels_query& query) {
  if (!has_backward(query))
    throw sdk::Failure(FVLM_ERROR_ARGUMENT, "backward called for a query without FVLM_WITH_BACKWARD");
}

inline MatmulShape forward_shape(const fvlm_kernels_query& q, int64_t rows, bool bias) {
  return {{q.dtype, q.dtype, rows, q.width, q.inner, false, true}, bias};
}
inline MatmulShape input_shape(const fvlm_kernels_query& q, int64_t rows) {
  return {{q.dtype, q.dtype, rows, q.inner, q.width}};
}
// The forward with the query's GELU, or the input gradient with its derivative.
inline MatmulShape gelu_shape(const fvlm_kernels_query& q, MatmulShape::Gelu gelu, int64_t rows) {
  const bool forward = gelu == MatmulShape::Gelu::value;
  MatmulShape shape = forward ? forward_shape(q, rows, has_bias(q)) : input_shape(q, rows);
  shape.gelu = gelu;
  shape.has_pre_activation = has_backward(q) && forward;
  return shape;
}
inline MatmulShape weight_shape(const fvlm_kernels_query& q, int64_t rows) {
  return {{q.dtype, q.gradient_dtype, q.width, q.inner, rows, true}};
}

inline SkinnyGemmShape skinny_forward_shape(const fvlm_kernels_query& q) {
  return {q.dtype, q.rows, q.inner, q.width};
}
inline SkinnyGemmShape skinny_input_shape(const fvlm_kernels_query& q) {
  return {q.dtype, q.rows, q.width, q.inner, true};
}
inline FusedGemmShape fused_forward_shape(const fvlm_kernels_query& q) {
  return {q.dtype, q.rows, q.inner, q.width, gelu_form_of(q.options)};
}
inline FusedGemmShape fused_input_shape(const fvlm_kernels_query& q) {
  return {q.dtype, q.rows, q.width, q.inner, gelu_form_of(q.options)};
}
inline WeightGradientShape weight_gradient_shape(const fvlm_kernels_query& q) {
  return {q.dtype, q.gradient_dtype, q.rows, q.inner, q.width};
}
inline NarrowGradientsShape narrow_gradients_shape(const fvlm_kernels_query& q) {
  return {q.dtype, q.gradient_dtype, q.rows, q.width, q.inner};
}

// Room for 16 partial sums of the largest result that cuBLASLt may want to split.
inline int64_t cublas_bytes(const fvlm_kernels_query& query) {
  constexpr int64_t max_cublas_bytes = 32 << 20, min_cublas_bytes = 1 << 20;
  int64_t largest = query.rows * query.width;
  if (has_backward(query)) largest = std::max({largest, query.rows * query.inner, query.width * query.inner});
  return std::clamp(largest * 4 * 16, min_cublas_bytes, max_cublas_bytes);
}

} // namespace fvlm::plugins
