#include "linear_extended.h"

#include "common/cuda_device.h"
#include "linear_operands.h"
#include "linear_shapes.h"

namespace fvlm::plugins {

using namespace fvlm::sdk;

Support fits_extended(const fvlm_kernels_query& query, bool is_hopper) {
  constexpr std::uint32_t alone = FVLM_WITH_NORM | FVLM_WITH_SWIGLU | FVLM_WITH_BIAS | FVLM_WITH_RESIDUAL;
  if ((query.options & ~alone) || ((query.options & FVLM_WITH_SWIGLU) && has_residual(query)))
    return refuse("a norm or SwiGLU together with options %#x is not supported", query.options);
  if (query.dtype != bfloat16)
    return refuse("a norm or SwiGLU in %s is not supported: expected bfloat16", name_of(query.dtype));
  SkinnyGemmShape shape = skinny_forward_shape(query);
  if (query.options & FVLM_WITH_SWIGLU) shape.width *= 2;
  if (!few_rows_supports(shape, is_hopper) || shape.width > INT32_MAX)
    return refuse(
        "a norm or SwiGLU with %lld rows of %lld and %lld columns is not supported: expected at most 8 rows, or "
        "32 where the weight is small or streamed, of a multiple of 8",
        static_cast<long long>(query.rows), static_cast<long long>(query.inner), static_cast<long long>(shape.width));
  return accept(200, "one kernel for few rows");
}

FewRowsGemm extended_product(const fvlm_kernels_query& query, const fvlm_linear_forward& a) {
  const bool swiglu = query.options & FVLM_WITH_SWIGLU;
  const int64_t columns = swiglu ? 2 * query.width : query.width;
  FewRowsGemm o{rows_of(matrix_of(a.x, query.dtype, query.rows, query.inner, "x")),
                rows_of(parameter_of(a.weight, query.dtype, columns, query.inner, "weight")),
                rows_of(matrix_of(a.y, query.dtype, query.rows, query.width, "y"))};
  if (has_bias(query)) o.bias = vector_of(a.bias, query.dtype, columns, "bias");
  if (has_residual(query))
    o.residual = rows_of(matrix_of(a.residual, query.dtype, query.rows, query.width, "residual"));
  if (query.options & FVLM_WITH_NORM) {
    if (a.struct_size < sizeof a) throw Failure(FVLM_ERROR_ARGUMENT, "norm_weight is missing");
    o.norm_weight = vector_of(a.norm_weight, query.dtype, query.inner, "norm_weight");
  }
  o.epsilon = query.epsilon;
  o.swiglu = swiglu;
  o.starts_early = true;
  if (!few_rows_aligned(o)) throw Failure(FVLM_ERROR_UNSUPPORTED, "operands have to be aligned to 16 bytes");
  return o;
}

bool is_decoding_product(const fvlm_kernels_query& query, bool is_hopper) {
  constexpr std::uint32_t simple = FVLM_WITH_BIAS | FVLM_WITH_RESIDUAL;
  return !(query.options & ~simple) && few_rows_supports(skinny_forward_shape(query), is_hopper);
}

Support fits_both_gradients(const fvlm_kernels_query& query) {
  constexpr std::uint32_t excluded = FVLM_WITH_BIAS | FVLM_WITH_RESIDUAL | FVLM_WITH_GELU;
  if (gives_both_gradients(query) &&
      ((query.options & excluded) || !has_backward(query) || is_extended(query) ||
       !narrow_gradients_support(narrow_gradients_shape(query), shared_memory_per_block(query.device))))
    return refuse("both gradients of a linear from %lld to %lld features at once are not supported here",
                  static_cast<long long>(query.inner), static_cast<long long>(query.width));
  return accept(200, "no such option, or one pass");
}

NarrowGradients both_gradients_of(const fvlm_kernels_query& query, const fvlm_linear_weight_gradient& a) {
  if (a.struct_size < sizeof a) throw Failure(FVLM_ERROR_ARGUMENT, "weight and d_x are missing");
  return {rows_of(matrix_of(a.d_y, query.dtype, query.rows, query.width, "d_y")),
          rows_of(weight_of(query, a.weight)),
          rows_of(matrix_of(a.x, query.dtype, query.rows, query.inner, "x")),
          rows_of(matrix_of(a.d_x, query.dtype, query.rows, query.inner, "d_x")),
          a.d_weight->data,
          a.accumulate != 0};
}

int64_t both_gradients_workspace(const fvlm_kernels_query& query, int multiprocessors) {
  return gives_both_gradients(query) ? narrow_gradients_workspace(multiprocessors, narrow_gradients_shape(query)) : 0;
}

} // namespace fvlm::plugins
