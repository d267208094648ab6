#include "linear_fp8.h"

#include "fp8_strips.h"
#include "linear_operands.h"

namespace fvlm::plugins {

using namespace fvlm::sdk;

namespace {

MatmulShape forward_product(const fvlm_kernels_query& q) {
  return {{e4m3, q.dtype, q.rows, q.width, with_pairs(q, q.inner), false, true}, has_bias(q)};
}
// Hopper multiplies rows by rows: the weight is transposed where it is rounded.
MatmulShape input_product(const fvlm_kernels_query& q) {
  return {{e4m3, q.dtype, q.rows, q.inner, with_pairs(q, q.width), false, true}};
}

// Of transposed operands, as above.
MatmulShape weight_product(const fvlm_kernels_query& q) {
  return {{e4m3, q.gradient_dtype, q.width, q.inner, q.rows, false, true}};
}

Matmul require_product(const CublasLt& library, const MatmulShape& shape, std::size_t workspace) {
  Matmul product(library, shape, workspace);
  if (!product.exists_aligned()) throw Failure(FVLM_ERROR_UNSUPPORTED, "cuBLASLt has no algorithm for e4m3");
  return product;
}

void run(const Fp8Call& on, const Matmul& product, MatmulOperands operands, int64_t inner) {
  const int64_t summed = with_pairs(on.query, inner);
  operands.a = {on.scratch.rows.values, summed}, operands.a_scales = on.scratch.rows.scales;
  operands.b = {on.scratch.weight.values, summed}, operands.b_scales = on.scratch.weight.scales;
  product.run(on.library, on.call, operands, {static_cast<char*>(on.workspace), on.workspace_size});
}

} // namespace

Support fits_fp8_sizes(const fvlm_kernels_query& query) {
  const bool of_inner = pairs_of(query) > 0 && sums_over_inner(query), of_width = pairs_of(query) > 0 && !of_inner;
  const int64_t inner = of_inner ? with_pairs(query, query.inner) : query.inner,
                width = of_width ? with_pairs(query, query.width) : query.width;
  if (width % fp8_unit != 0 || inner % fp8_unit != 0)
    return refuse("fp8 from %lld to %lld features is not supported: expected multiples of 16",
                  static_cast<long long>(query.inner), static_cast<long long>(query.width));
  if (pairs_of(query) % 8 != 0 || pairs_of(query) < 0 || pairs_of(query) > (of_inner ? query.inner : query.width))
    return refuse("%lld pairs of e4m3 are not supported: expected a multiple of 8",
                  static_cast<long long>(pairs_of(query)));
  if (pairs_of(query) > 0 && gives_both_gradients(query))
    return refuse("pairs of e4m3 together with both gradients are not supported");
  return accept(200, "e4m3");
}

Support fits_fp8(const fvlm_kernels_query& query, bool is_hopper) {
  constexpr std::uint32_t allowed = FVLM_WITH_FP8 | FVLM_WITH_BACKWARD | FVLM_WITH_BIAS | FVLM_WITH_RESIDUAL |
                                    FVLM_STRIDED_WEIGHT | FVLM_BOTH_GRADIENTS | FVLM_FP8_PAIRS;
  if (query.options & ~allowed) return refuse("fp8 together with options %#x is not supported", query.options);
  if (!is_hopper) return refuse("fp8 with a scale for each row needs a GPU of compute capability 9.0");
  if (query.dtype != bfloat16)
    return refuse("fp8 in place of %s is not supported: expected bfloat16", name_of(query.dtype));
  constexpr std::uint32_t not_with_both = FVLM_WITH_BIAS | FVLM_WITH_RESIDUAL;
  if (gives_both_gradients(query) &&
      ((query.options & not_with_both) || !has_backward(query) || query.rows % fp8_unit != 0))
    return refuse("both gradients in fp8 of %lld rows are not supported: expected a multiple of 16 without bias",
                  static_cast<long long>(query.rows));
  if (Support no = fits_fp8_sizes(query); no.score == 0) return no;
  return accept(200, "cuBLASLt %zu, e4m3", cublasLtGetVersion());
}

Fp8Scratch allocate_fp8(Workspace& workspace, const fvlm_kernels_query& query) {
  const int64_t inner = with_pairs(query, query.inner), width = with_pairs(query, query.width),
                widest = has_backward(query) ? std::max(width, inner) : inner;
  const auto take_rows = [&](int64_t count, int64_t rows) {
    return Fp8Rows{workspace.take<std::uint8_t>(count).data(), workspace.take<float>(rows).data(), pairs_of(query)};
  };
  Fp8Scratch scratch{};
  scratch.rows = take_rows(query.rows * widest, query.rows);
  scratch.weight = take_rows(std::max(query.width * inner, query.inner * width), std::max(query.width, query.inner));
  scratch.weight.is_weight = true;
  if (!gives_both_gradients(query)) return scratch;
  scratch.x = take_rows(query.rows * query.inner, query.rows);
  scratch.turned_d_y = workspace.take<std::uint8_t>(query.rows * query.width).data();
  scratch.turned_x = workspace.take<std::uint8_t>(query.rows * query.inner).data();
  scratch.joined = {workspace.take<float>(query.rows).data(), workspace.take<float>(query.width).data(),
                    workspace.take<float>(query.inner).data(), query.width, query.inner};
  return scratch;
}

void plan_fp8(const CublasLt& library, const fvlm_kernels_query& query, std::size_t workspace, LinearPlan& plan) {
  const bool has_pairs = pairs_of(query) > 0;
  if (!has_pairs || sums_over_inner(query))
    plan.fp8_forward = require_product(library, forward_product(query), workspace);
  if (has_backward(query)) plan.fp8_input = require_product(library, input_product(query), workspace);
  if (gives_both_gradients(query)) plan.fp8_weight = require_product(library, weight_product(query), workspace);
}

void fp8_forward(const Fp8Call& on, const Matrix& x, const Matrix& weight, const Matrix& y, void* bias,
                 const Matrix& residual) {
  const fvlm_kernels_query& q = on.query;
  round_rows_to_fp8(on.device, shape_of(q.dtype, q.rows, q.inner, {x}), rows_of(x), on.scratch.rows);
  round_rows_to_fp8(on.device, shape_of(q.dtype, q.width, q.inner, {weight}), rows_of(weight), on.scratch.weight);
  run(on, on.plan.fp8_forward, {{}, {}, y, bias, false, residual}, q.inner);
}

void fp8_input_gradient(const Fp8Call& on, const Matrix& d_y, const Matrix& weight, const Matrix& d_x) {
  const fvlm_kernels_query& q = on.query;
  round_rows_to_fp8(on.device, shape_of(q.dtype, q.rows, q.width, {d_y}), rows_of(d_y), on.scratch.rows);
  round_columns_to_fp8(on.device, shape_of(q.dtype, q.width, q.inner, {weight}), rows_of(weight), on.scratch.weight);
  run(on, on.plan.fp8_input, {{}, {}, d_x}, q.width);
}

void fp8_both_gradients(const Fp8Call& on, const NarrowGradients& o) {
  const fvlm_kernels_query& q = on.query;
  const Fp8Scratch& s = on.scratch;
  const Matrix d_y = matrix_of(o.d_y), x = matrix_of(o.x);
  if (o.d_x.data)
    fp8_input_gradient(on, d_y, matrix_of(o.weight), matrix_of(o.d_x));
  else
    round_rows_to_fp8(on.device, shape_of(q.dtype, q.rows, q.width, {d_y}), o.d_y, s.rows);
  const Shape of_x = shape_of(q.dtype, q.rows, q.inner, {x});
  if (!round_strips_of_rows(on.device, of_x, o.x, {s.turned_x, s.x.scales})) {
    round_rows_to_fp8(on.device, of_x, o.x, s.x);
    transpose_fp8(on.device, s.x.values, s.turned_x, nullptr, q.rows, q.inner);
  }
  join_fp8_scales(on.device, s.rows.scales, s.x.scales, q.rows, s.joined);
  transpose_fp8(on.device, s.rows.values, s.turned_d_y, s.joined.factors, q.rows, q.width);
  MatmulOperands operands{{s.turned_d_y, q.rows}, {s.turned_x, q.rows}, {o.d_weight, q.inner}, nullptr, o.accumulate};
  operands.a_scales = s.joined.of_rows, operands.b_scales = s.joined.of_columns;
  on.plan.fp8_weight.run(on.library, on.call, operands, {static_cast<char*>(on.workspace), on.workspace_size});
}

} // namespace fvlm::plugins
