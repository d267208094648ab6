#include "linear_extended.h"

#include "common/cuda_device.h"
#include "gemm_swiglu.h"
#include "linear_operands.h"
#include "linear_shapes.h"

namespace fvlm::plugins {

using namespace fvlm::sdk;

namespace {

SwigluGemmShape swiglu_shape(const fvlm_kernels_query& query) {
  const bool is_forward = query.options & FVLM_WITH_SWIGLU;
  return {query.rows, with_pairs(query, is_forward ? query.inner : query.width),
          is_forward ? query.width : query.inner};
}

// SwiGLU or its derivative where a backward follows: many rows.
Support fits_swiglu(const fvlm_kernels_query& query, bool is_hopper) {
  constexpr std::uint32_t alone = FVLM_WITH_SWIGLU | FVLM_SWIGLU_INPUT;
  std::uint32_t which = query.options & ~std::uint32_t{FVLM_WITH_BACKWARD | FVLM_WITH_FP8 | FVLM_FP8_PAIRS};
  if (which & FVLM_SWIGLU_INPUT) which &= ~std::uint32_t{FVLM_STRIDED_WEIGHT | FVLM_WITH_OUTPUT};
  if (!has_backward(query) || (which != FVLM_WITH_SWIGLU && which != FVLM_SWIGLU_INPUT))
    return refuse("SwiGLU with backward together with options %#x is not supported", query.options & ~alone);
  if (!is_hopper) return refuse("SwiGLU with backward needs a GPU of compute capability 9.0");
  if (query.dtype != bfloat16) return refuse("SwiGLU in %s is not supported: expected bfloat16", name_of(query.dtype));
  if (is_fp8(query))
    if (Support no = fits_fp8_sizes(query); no.score == 0) return no;
  // Fewer leave most multiprocessors without work, in bf16 before the products are fast enough to make up for it
  // (bench/LOG.md, 2026-11-26 and 27).
  const long long min_rows = is_fp8(query) ? 1024 : 2048;
  if (query.rows < min_rows || !swiglu_gemm_supports(swiglu_shape(query)))
    return refuse("SwiGLU with %lld rows of %lld and %lld columns is not supported: expected at least %lld rows of "
                  "multiples of 8",
                  static_cast<long long>(query.rows), static_cast<long long>(query.inner),
                  static_cast<long long>(query.width), min_rows);
  return accept(200, "the product's epilogue");
}

void require_aligned(bool aligned) {
  if (!aligned) throw Failure(FVLM_ERROR_UNSUPPORTED, "operands have to be aligned to 16 bytes");
}

FewRowsGemm few_rows_product(const fvlm_kernels_query& query, const fvlm_linear_forward& a) {
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
  require_aligned(few_rows_aligned(o));
  return o;
}

} // namespace

Support fits_extended(const fvlm_kernels_query& query, bool is_hopper) {
  if (has_backward(query)) return fits_swiglu(query, is_hopper);
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
        "32 where the weight is small or, on a Hopper in bfloat16, large, of a multiple of 8",
        static_cast<long long>(query.rows), static_cast<long long>(query.inner), static_cast<long long>(shape.width));
  return accept(200, "one kernel for few rows");
}

void extended_forward(const Device& device, const fvlm_kernels_query& query, const fvlm_linear_forward& a,
                      const Fp8Scratch& fp8) {
  if (!has_backward(query)) return few_rows_gemm(device, skinny_forward_shape(query), few_rows_product(query, a));
  if (!(query.options & FVLM_WITH_SWIGLU))
    throw Failure(FVLM_ERROR_UNSUPPORTED, "FVLM_SWIGLU_INPUT is for the input gradient");
  SwigluGemmForward o{matrix_of(a.x, query.dtype, query.rows, query.inner, "x"),
                      parameter_of(a.weight, query.dtype, 2 * query.width, query.inner, "weight"),
                      matrix_of(a.pre_activation, query.dtype, query.rows, 2 * query.width, "pre_activation"),
                      matrix_of(a.y, query.dtype, query.rows, query.width, "y")};
  require_aligned(tma_compatible(query.dtype, {o.x, o.weight, o.gate_up, o.y}));
  if (is_fp8(query)) {
    round_rows_to_fp8(device, shape_of(query.dtype, query.rows, query.inner, {o.x}), rows_of(o.x), fp8.rows);
    round_rows_to_fp8(device, shape_of(query.dtype, 2 * query.width, query.inner, {o.weight}), rows_of(o.weight),
                      fp8.weight);
    const int64_t summed = with_pairs(query, query.inner);
    o.x = {fp8.rows.values, summed}, o.weight = {fp8.weight.values, summed};
    o.scales = {fp8.rows.scales, fp8.weight.scales};
  }
  swiglu_gemm_forward(device, swiglu_shape(query), o);
}

void extended_input_gradient(const Device& device, const fvlm_kernels_query& query, const fvlm_linear_input_gradient& a,
                             const Fp8Scratch& fp8) {
  if (!(query.options & FVLM_SWIGLU_INPUT))
    throw Failure(FVLM_ERROR_UNSUPPORTED, "SwiGLU's input gradient is that of a plain linear");
  SwigluGemmBackward o{matrix_of(a.d_y, query.dtype, query.rows, query.width, "d_y"), weight_of(query, a.weight),
                       matrix_of(a.pre_activation, query.dtype, query.rows, 2 * query.inner, "pre_activation"),
                       matrix_of(a.d_x, query.dtype, query.rows, 2 * query.inner, "d_x")};
  require_aligned(tma_compatible(query.dtype, {o.d_y, o.weight, o.gate_up, o.d_gate_up}));
  if (query.options & FVLM_WITH_OUTPUT) {
    if (a.struct_size < sizeof a) throw Failure(FVLM_ERROR_ARGUMENT, "x is missing");
    o.y = matrix_of(a.x, query.dtype, query.rows, query.inner, "x");
    require_aligned(tma_compatible(query.dtype, {o.y}));
  }
  if (is_fp8(query)) {
    round_rows_to_fp8(device, shape_of(query.dtype, query.rows, query.width, {o.d_y}), rows_of(o.d_y), fp8.rows);
    round_columns_to_fp8(device, shape_of(query.dtype, query.width, query.inner, {o.weight}), rows_of(o.weight),
                         fp8.weight);
    const int64_t summed = with_pairs(query, query.width);
    o.d_y = {fp8.rows.values, summed}, o.weight = {fp8.weight.values, summed};
    o.scales = {fp8.rows.scales, fp8.weight.scales};
  }
  swiglu_gemm_backward(device, swiglu_shape(query), o);
}

Fp8Scratch allocate_extended(Workspace& workspace, const fvlm_kernels_query& query) {
  if (!is_fp8(query)) return {};
  fvlm_kernels_query operands = query;
  if (query.options & FVLM_WITH_SWIGLU) operands.width *= 2, operands.options &= ~std::uint32_t{FVLM_WITH_BACKWARD};
  return allocate_fp8(workspace, operands);
}

bool is_decoding_product(const fvlm_kernels_query& query, bool is_hopper) {
  constexpr std::uint32_t simple = FVLM_WITH_BIAS | FVLM_WITH_RESIDUAL;
  return !(query.options & ~simple) && few_rows_supports(skinny_forward_shape(query), is_hopper);
}

Support fits_both_gradients(const fvlm_kernels_query& query) {
  constexpr std::uint32_t excluded = FVLM_WITH_BIAS | FVLM_WITH_RESIDUAL | FVLM_WITH_GELU;
  if (gives_both_gradients(query) && !is_fp8(query) &&
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
          is_fp8(query) && !a.d_x ? Rows{} : rows_of(matrix_of(a.d_x, query.dtype, query.rows, query.inner, "d_x")),
          a.d_weight->data,
          a.accumulate != 0};
}

int64_t both_gradients_workspace(const fvlm_kernels_query& query, int multiprocessors) {
  return gives_both_gradients(query) && !is_fp8(query)
             ? narrow_gradients_workspace(multiprocessors, narrow_gradients_shape(query))
             : 0;
}

} // namespace fvlm::plugins
