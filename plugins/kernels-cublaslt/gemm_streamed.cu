// gemm_streamed.cu: products with GELU or its derivative (gemm_gelu.h) for inner dimensions that do not fit into shared
// memory, as vision towers of width 768 or 1,024 have. Chosen by measurement; the main loop is that of
// gemm_streamed.cuh.
//
// Measured on an H100, bf16 (bench/LOG.md, 2026-11-26): 18,464 x 1,024 -> 4,096 with quick_gelu 220 us, as cuBLASLt's
// plain product; 32,768 x 768 -> 3,072 with tanh and the pre-activation kept 245 us, the derivative with sums 292 us.
#include "gemm_streamed.cuh"

namespace fvlm::plugins {
namespace {

using namespace fused;

using Problem = StreamedProblem<EpilogueOperands>;
using Memory = EpilogueMemory<wide>;

Problem problem_of(const FusedGemmShape& shape, const Matrix& x, const Matrix& weight, bool weight_transposed,
                   const Matrix& out) {
  auto p = streamed_problem<EpilogueOperands>(shape, x, weight, weight_transposed);
  p.epilogue.out = map_of(shape.dtype, out, shape.rows, shape.width, box_rows);
  p.epilogue.width = static_cast<int>(shape.width);
  return p;
}

template <template <class, class, int> class Epilogue>
void launch_form(const Device& device, const FusedGemmShape& shape, const Problem& p) {
  sdk::dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if (shape.form.exact)
      launch_streamed<T, Epilogue<T, FusedExactGelu, wide>, Memory>(device, p);
    else if (shape.form.cubic != 0)
      launch_streamed<T, Epilogue<T, FusedSigmoidGelu<true>, wide>, Memory>(device, p);
    else
      launch_streamed<T, Epilogue<T, FusedSigmoidGelu<false>, wide>, Memory>(device, p);
  });
}

} // namespace

bool streamed_gemm_supports(const FusedGemmShape& shape) {
  constexpr int64_t min_rows = 1024; // fewer leave most multiprocessors without work
  return sdk::is_one_of<BFloat16, Half>(shape.dtype) && shape.rows >= min_rows && shape.width % 2 == 0;
}

int64_t streamed_sum_parts(const FusedGemmShape& shape) {
  return ceil_divide(shape.rows, blocks * tile_rows) * blocks * warpgroup_warps;
}

void streamed_gelu_forward(const Device& device, const FusedGemmShape& shape, const FusedGeluForward& o) {
  Problem p = problem_of(shape, o.x, o.weight, false, o.y);
  p.epilogue.stores_side = o.sum.data != o.y.data;
  if (p.epilogue.stores_side) p.epilogue.side = map_of(shape.dtype, o.sum, shape.rows, shape.width, box_rows);
  p.epilogue.bias = o.bias;
  launch_form<GeluForwardEpilogue>(device, shape, p);
}

void streamed_gelu_backward(const Device& device, const FusedGemmShape& shape, const FusedGeluBackward& o) {
  Problem p = problem_of(shape, o.d_y, o.weight, true, o.d_x);
  p.epilogue.side = map_of(shape.dtype, o.x, shape.rows, shape.width, box_rows);
  p.epilogue.sums = o.sums;
  launch_form<GeluBackwardEpilogue>(device, shape, p);
}

} // namespace fvlm::plugins
