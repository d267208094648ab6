// gemm_few_rows_streamed.cu: products of few rows (gemm_few_rows.h) with large weights in bfloat16, streamed through
// shared memory by TMA (common/cuda_streamed_product.cuh). For Hopper.
#include "common/cuda_streamed_product.cuh"
#include "gemm_few_rows.h"

namespace fvlm::plugins {
namespace {

constexpr int most_rows = 32;
// Smaller weights are read faster by threads, whose first loads are back sooner.
constexpr std::int64_t least_numbers_of_weight = 4 << 20;
// Up to so many rows, and numbers of x, x is brought to shared memory as a whole.
constexpr int most_resident_rows = 4, most_resident_numbers = 20'000;
// A head is as fast by cuBLASLt.
constexpr std::int64_t most_columns_of_many_rows = 32 << 10;
constexpr std::int64_t most_inner = 16 << 10; // whose norm's weight is in shared memory

struct Launch {
  cudaStream_t stream;
  streamed::Operands operands;
  streamed::Problem problem;
  int split;
  bool starts_early;

  template <int row_tiles, int columns, int lines, int stages>
  void run() const {
    using streamed::Layout, streamed::PlainWeight;
    if (problem.norm_weight)
      streamed::launch<Layout<PlainWeight, row_tiles, columns, 1, lines, stages, true>>(stream, operands, problem,
                                                                                        split, starts_early);
    else
      streamed::launch<Layout<PlainWeight, row_tiles, columns, 1, lines, stages, false>>(stream, operands, problem,
                                                                                         split, starts_early);
  }
};

std::int64_t columns_of_weight(const SkinnyGemmShape& shape, bool swiglu) {
  return swiglu ? 2 * shape.width : shape.width;
}

} // namespace

bool streamed_few_rows_supports(const SkinnyGemmShape& shape) {
  if (shape.dtype != sdk::bfloat16 || shape.weight_transposed || shape.inner % 64 != 0 || shape.inner > most_inner ||
      shape.rows > most_rows || shape.inner * shape.width < least_numbers_of_weight)
    return false;
  if (shape.rows > streamed::tile_rows) return shape.width <= most_columns_of_many_rows;
  return shape.rows <= most_resident_rows && shape.rows * shape.inner <= most_resident_numbers;
}

bool streamed_few_rows_takes(const Device& device, const SkinnyGemmShape& shape, const FewRowsGemm& o) {
  SkinnyGemmShape of_weight = shape;
  of_weight.width = columns_of_weight(shape, o.swiglu);
  return device.has_clusters && o.starts_early && streamed_few_rows_supports(of_weight);
}

void streamed_few_rows_gemm(const Device& device, const SkinnyGemmShape& shape, const FewRowsGemm& o) {
  Launch launch{device.stream, {o.x.data, o.x.stride, o.weight.data, o.weight.stride * 2}, {}, 1, o.starts_early};
  streamed::Problem& p = launch.problem;
  p.bias = o.bias, p.residual = o.residual.data, p.norm_weight = o.norm_weight, p.y = o.y.data;
  p.residual_stride = o.residual.stride, p.y_stride = o.y.stride;
  p.rows = static_cast<int>(shape.rows), p.inner = static_cast<int>(shape.inner);
  p.width = static_cast<int>(shape.width);
  p.epsilon = o.epsilon, p.is_gated = o.swiglu;
  p.starts_next_early = true;
  // Chosen by measurement (bench/LOG.md, 2026-11-26).
  const bool is_wide = columns_of_weight(shape, o.swiglu) >= 32 * device.multiprocessors;
  if (shape.rows <= streamed::tile_rows) return is_wide ? launch.run<1, 32, 4, 4>() : launch.run<1, 16, 4, 6>();
  if (is_wide) return launch.run<4, 32, 2, 5>();
  launch.split = shape.inner >= 4096 ? 2 : 1;
  launch.run<4, 16, 4, 4>();
}

} // namespace fvlm::plugins
