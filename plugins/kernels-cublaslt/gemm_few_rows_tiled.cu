// gemm_few_rows_tiled.cu: products of few rows (gemm_few_rows.h) with large weights in bfloat16, by wgmma
// (common/cuda_tiled_product.cuh). For Hopper.
#include "common/cuda_tiled_product.cuh"
#include "gemm_few_rows.h"

namespace fvlm::plugins {
namespace {

constexpr int most_rows = 32;
// Smaller weights are read faster by threads, whose first loads are back sooner.
constexpr std::int64_t least_numbers_of_weight = 4 << 20;
// A head is as fast by cuBLASLt.
constexpr std::int64_t most_columns_of_many_rows = 32 << 10, many_rows = 8;
constexpr std::int64_t most_inner = 16 << 10; // whose norm's weight is in shared memory

constexpr int warpgroups = 2, block_columns = 64 * warpgroups;

template <int rows, int blocks>
void launch(const Device& device, const FewRowsGemm& o, const tiled::Problem& p, int split) {
  tiled::launch<tiled::Layout<tiled::PlainWeight, rows, warpgroups, blocks>>(
      device.stream, {o.x.data, o.x.stride, o.weight.data, std::int64_t{p.cols} * 2, o.weight.stride * 2}, p, split);
}

std::int64_t columns_of_weight(const SkinnyGemmShape& shape, bool swiglu) {
  return swiglu ? 2 * shape.width : shape.width;
}

} // namespace

bool tiled_few_rows_supports(const SkinnyGemmShape& shape) {
  return shape.dtype == sdk::bfloat16 && !shape.weight_transposed && shape.inner % 8 == 0 &&
         shape.inner <= most_inner && shape.width % 8 == 0 && shape.rows <= most_rows &&
         shape.inner * shape.width >= least_numbers_of_weight &&
         (shape.rows <= many_rows || shape.width <= most_columns_of_many_rows);
}

bool tiled_few_rows_takes(const Device& device, const SkinnyGemmShape& shape, const FewRowsGemm& o) {
  SkinnyGemmShape of_weight = shape;
  of_weight.width = columns_of_weight(shape, o.swiglu);
  const auto is_aligned = [](const void* data, std::int64_t stride) {
    return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(stride * 2)) % 8 == 0;
  };
  return device.has_clusters && o.starts_early && tiled_few_rows_supports(of_weight) &&
         is_aligned(o.y.data, o.y.stride) && is_aligned(o.residual.data, o.residual.stride) && is_aligned(o.bias, 0);
}

// How a product is divided was chosen by measurement (bench/LOG.md, 2026-11-27): four blocks split the columns of a
// weight that has not a tile for each multiprocessor, and there are no more blocks than find room at once.
void tiled_few_rows_gemm(const Device& device, const SkinnyGemmShape& shape, const FewRowsGemm& o) {
  tiled::Problem p{};
  p.bias = o.bias, p.residual = o.residual.data, p.norm_weight = o.norm_weight, p.y = o.y.data;
  p.residual_stride = o.residual.stride, p.y_stride = o.y.stride;
  p.tokens = static_cast<int>(shape.rows), p.cols = static_cast<int>(shape.inner);
  p.width = static_cast<int>(shape.width);
  p.epsilon = o.epsilon, p.is_gated = o.swiglu;
  const std::int64_t tiles = (columns_of_weight(shape, o.swiglu) + block_columns - 1) / block_columns;
  const int split = 4 * tiles < 3 * device.multiprocessors ? 4 : 1;
  const bool two_blocks = tiles * split > device.multiprocessors;
  const auto with_rows = [&](auto rows) {
    two_blocks ? launch<rows, 2>(device, o, p, split) : launch<rows, 1>(device, o, p, split);
  };
  if (p.tokens <= 8) return with_rows(std::integral_constant<int, 8>{});
  if (p.tokens <= 16) return with_rows(std::integral_constant<int, 16>{});
  with_rows(std::integral_constant<int, 32>{});
}

} // namespace fvlm::plugins
