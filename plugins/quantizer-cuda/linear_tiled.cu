// linear_tiled.cu: products of 9 to 256 tokens in bfloat16 with a quantized weight, by wgmma. For Hopper.
#include "linear_tiled.cuh"

#include <algorithm>

namespace fvlm::plugins {
namespace {

constexpr std::int64_t least_tokens = 9; // fewer are one tile of linear_mma.cu
// Up to 16 tokens and with fewer tokens x rows x columns, products in int8 are done sooner by linear_mma.cu, whose
// first loads are back sooner.
constexpr std::int64_t few_tokens = 16, least_work = 96 << 20;
constexpr std::int64_t most_cols = 16 << 10; // whose norm's weight and scales are in shared memory

// How a product is divided: tokens of a tile, warpgroups of 64 output features a block, blocks that split the columns.
struct Plan {
  int tokens, warpgroups, split;
};

// Chosen by measurement (bench/LOG.md, 2026-11-27): blocks of two warpgroups, or of one where the weight has few output
// features; and columns are split into as many parts as let all clusters find room at once, for which some of the
// multiprocessors have to stay free.
Plan plan_of(const PackedWeight& packed, std::int64_t tokens, int multiprocessors) {
  const std::int64_t tiles = (tokens + 127) / 128, of_tile = (tokens + tiles - 1) / tiles;
  int tile = 128;
  for (const int smaller : {96, 80, 64, 32, 16})
    if (of_tile <= smaller) tile = smaller;
  const auto blocks = [&](int warpgroups) { return (packed.rows + 64 * warpgroups - 1) / (64 * warpgroups) * tiles; };
  const bool is_narrow = blocks(2) * 4 <= multiprocessors, spills = packed.bits == 4 && tile == 128;
  const int warpgroups = is_narrow && !spills ? 1 : 2;
  const std::int64_t most_split = packed.cols >= 4096 ? 6 : 4,
                     split = 3 * multiprocessors / (2 * warpgroups * blocks(warpgroups));
  return {tile, warpgroups, static_cast<int>(std::clamp<std::int64_t>(split, 1, most_split))};
}

bool aligned(const MatrixView& matrix, std::uintptr_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(matrix.data) | static_cast<std::uintptr_t>(matrix.stride * 2)) % bytes == 0;
}

struct Launch {
  cudaStream_t stream;
  const PackedWeight& packed;
  const SkinnyLinear& linear;
  int split;

  template <int bits, int tokens, int warpgroups>
  void run() const {
    using L = tiled::Layout<bits, tokens, warpgroups>;
    tiled::Problem p = problem();
    const auto parts = static_cast<cuuint64_t>(p.is_gated ? 2 : 1),
               row_bytes = static_cast<cuuint64_t>(packed.row_bytes), width = static_cast<cuuint64_t>(p.width);
    p.codes = TensorMapShape{
        CU_TENSOR_MAP_DATA_TYPE_UINT8,
        4,
        {row_bytes, width, parts, 1},
        {row_bytes, row_bytes * width, row_bytes * width * parts},
        {128, L::rows / static_cast<cuuint32_t>(parts), static_cast<cuuint32_t>(parts),
         1}}.encode(packed.codes);
    p.x = make_tensor_map(sdk::bfloat16, linear.x.data, linear.x.stride, linear.tokens, packed.cols, L::tokens);
    constexpr int own_bytes = sizeof(tiled::Shared<L>) + alignof(tiled::Shared<L>);
    const int lines = (p.cols + L::line_columns - 1) / L::line_columns, blocks = std::min(split, lines),
              most_lines = (lines + blocks - 1) / blocks, steps = most_lines * L::steps,
              small_bytes = (p.norm_weight ? steps * tiled::box_row_bytes : 0) +
                            4 * L::rows * ((L::has_groups ? steps * tiled::box_width >> p.group_shift : 1) | 1),
              room = (L::blocks == 1 ? 227 << 10 : 113 << 10) - own_bytes - small_bytes;
    p.code_stages =
        std::clamp(std::min(most_lines, (room - 4 * L::x_bytes) / L::code_bytes), 1, tiled::most_code_stages);
    const int code_bytes = std::max(p.code_stages * L::code_bytes, (L::sum_bytes + 1023) / 1024 * 1024);
    p.x_stages = std::clamp((room - code_bytes) / L::x_bytes, 2, std::min(std::max(steps, 2), tiled::most_x_stages));
    const int rings = p.code_stages * L::code_bytes + p.x_stages * L::x_bytes;
    launch<L>(p, blocks, own_bytes + std::max(rings + small_bytes, L::sum_bytes));
  }

 private:
  tiled::Problem problem() const {
    tiled::Problem p{};
    p.bias = linear.bias, p.residual = linear.residual.data, p.norm_weight = linear.norm_weight, p.y = linear.y.data;
    p.residual_stride = linear.residual.stride, p.y_stride = linear.y.stride;
    p.scales = packed.scales, p.groups = static_cast<int>(packed.groups);
    p.group_shift = packed.group == 128 ? 7 : 6; // of int4
    p.tokens = static_cast<int>(linear.tokens), p.cols = static_cast<int>(packed.cols);
    p.width = static_cast<int>(linear.is_gated ? packed.rows / 2 : packed.rows);
    p.epsilon = linear.epsilon, p.is_gated = linear.is_gated;
    return p;
  }

  template <class L>
  void launch(const tiled::Problem& p, int blocks, int bytes) const {
    const auto kernel = tiled::product_kernel<L>;
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10),
                    "shared memory");
    const int outputs = p.is_gated ? L::rows / 2 : L::rows;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>((p.width + outputs - 1) / outputs * blocks),
                          static_cast<unsigned>((p.tokens + L::tokens - 1) / L::tokens));
    config.blockDim = dim3(L::threads);
    config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
    config.stream = stream;
    cudaLaunchAttribute attributes[2]{may_start_early()};
    config.attrs = attributes, config.numAttrs = 1;
    if (blocks > 1) {
      cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    }
    sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, p), "launch");
  }
};

} // namespace

bool tiled_supports(fvlm_dtype dtype, const PackedWeight& shape, bool is_gated) {
  return dtype == sdk::bfloat16 && mma_supports(dtype, shape) && shape.rows % (is_gated ? 8 : 4) == 0 &&
         shape.cols <= most_cols && (shape.bits == 8 || shape.group == 128 || shape.group == 64);
}

bool tiled_takes(fvlm_dtype dtype, const PackedWeight& packed, const SkinnyLinear& linear) {
  const std::int64_t tokens = linear.tokens;
  return tiled_supports(dtype, packed, linear.is_gated) && mma_takes(dtype, packed, linear) && tokens >= least_tokens &&
         tokens <= max_tiled_tokens &&
         (packed.bits == 4 || tokens > few_tokens || tokens * packed.rows * packed.cols >= least_work) &&
         aligned(linear.y, 8) && aligned(linear.residual, 8) && reinterpret_cast<std::uintptr_t>(linear.bias) % 8 == 0;
}

void linear_tiled(cudaStream_t stream, const PackedWeight& packed, const SkinnyLinear& linear, int multiprocessors) {
  const Plan plan = plan_of(packed, linear.tokens, multiprocessors);
  const Launch launch{stream, packed, linear, plan.split};
  const auto with_tokens = [&](auto bits, auto tokens) {
    if constexpr (bits == 8 || tokens < 128)
      if (plan.warpgroups == 1) return launch.run<bits, tokens, 1>();
    launch.run<bits, tokens, 2>();
  };
  const auto with_bits = [&](auto bits) {
    const auto with = [&](auto tokens) { with_tokens(bits, tokens); };
    switch (plan.tokens) {
    case 16:
      return with(std::integral_constant<int, 16>{});
    case 32:
      return with(std::integral_constant<int, 32>{});
    case 64:
      return with(std::integral_constant<int, 64>{});
    case 80:
      return with(std::integral_constant<int, 80>{});
    case 96:
      return with(std::integral_constant<int, 96>{});
    default:
      return with(std::integral_constant<int, 128>{});
    }
  };
  packed.bits == 8 ? with_bits(std::integral_constant<int, 8>{}) : with_bits(std::integral_constant<int, 4>{});
}

} // namespace fvlm::plugins
