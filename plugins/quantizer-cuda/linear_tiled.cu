// linear_tiled.cu: products of 5 or 9 to 256 tokens in bfloat16 with a quantized weight, by wgmma. For Hopper.
#include "common/cuda_codes.cuh"
#include "common/cuda_tiled_product.cuh"
#include "elements.cuh"

namespace fvlm::plugins {
namespace {

template <int code_bits>
struct CodesWeight {
  static constexpr int bits = code_bits, lines = 1;
  static constexpr bool has_scales = true, has_groups = bits == 4;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  // The codes of two adjacent columns.
  __device__ static std::uint32_t load_two(std::uint32_t from) {
    std::uint32_t codes;
    if constexpr (bits == 8) {
      std::uint16_t both;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(both) : "r"(from));
      codes = both;
    } else {
      asm volatile("ld.shared.u8 %0, [%1];" : "=r"(codes) : "r"(from));
    }
    return codes;
  }
  __device__ static std::uint32_t first(std::uint32_t line, int lane) {
    return line + lane / 4 * tiled::box_row_bytes + ((lane / 4) << 4) + lane % 4 * bits / 4;
  }
  __device__ static void left(std::uint32_t line, int step, tiled::Left& left) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int byte = (step * 8 + i * 2 + half) * bits; // eight columns have as many bytes as a column has bits
        const std::uint32_t from = (line ^ (byte / 16 * 16)) + byte % 16;
#pragma unroll
        for (int high = 0; high < 2; ++high)
          left[i][half * 2 + high] =
              Codes<bits>::template pair<__nv_bfloat16>(load_two(from + high * 8 * tiled::box_row_bytes));
      }
  }
#endif
};

constexpr std::int64_t least_tokens = 5, least_tokens_of_int4 = 9; // fewer are one tile of linear_mma.cu
// Up to 16 tokens and with fewer tokens x rows x columns, products in int8 are done sooner by linear_mma.cu, whose
// first loads are back sooner.
constexpr std::int64_t few_tokens = 16, least_work = 96 << 20;
constexpr std::int64_t most_cols = 16 << 10; // whose norm's weight and scales are in shared memory

// How a product is divided: tokens of a tile, warpgroups of 64 output features a block, blocks that share a
// multiprocessor, blocks that split the columns.
struct Plan {
  int tokens, warpgroups, blocks, split;
};

// Chosen by measurement (bench/LOG.md, 2026-11-27): blocks of two warpgroups, or of one where the weight has few output
// features, or so many that no columns are split and there are few tokens; and columns are split into as many parts as
// let all clusters find room at once, for which some of the multiprocessors have to stay free.
Plan plan_of(const PackedWeight& packed, std::int64_t tokens, int multiprocessors) {
  const std::int64_t tiles = (tokens + 127) / 128, of_tile = (tokens + tiles - 1) / tiles;
  int tile = 128;
  for (const int smaller : {96, 80, 64, 32, 16})
    if (of_tile <= smaller) tile = smaller;
  const auto blocks = [&](int warpgroups) { return (packed.rows + 64 * warpgroups - 1) / (64 * warpgroups) * tiles; };
  const bool is_narrow = blocks(2) * 4 <= multiprocessors, is_wide = blocks(2) * 4 > multiprocessors * 3;
  if (packed.bits == 8 && tile <= 32 && !is_narrow && !is_wide) return {tile, 2, 2, 4};
  const bool spills = packed.bits == 4 && tile == 128;
  const int warpgroups = (is_narrow && !spills) || (is_wide && tile <= 16) ? 1 : 2;
  const std::int64_t most_split = packed.cols >= 4096 ? 6 : 4,
                     split = 3 * multiprocessors / (2 * warpgroups * blocks(warpgroups));
  return {tile, warpgroups, warpgroups == 1 ? 2 : 1, static_cast<int>(std::clamp<std::int64_t>(split, 1, most_split))};
}

bool aligned(const MatrixView& matrix, std::uintptr_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(matrix.data) | static_cast<std::uintptr_t>(matrix.stride * 2)) % bytes == 0;
}

struct Launch {
  cudaStream_t stream;
  tiled::Operands operands;
  tiled::Problem problem;
  int split;

  template <int bits, int tokens, int warpgroups, int blocks>
  void run() const {
    tiled::launch<tiled::Layout<CodesWeight<bits>, tokens, warpgroups, blocks>>(stream, operands, problem, split);
  }
};

tiled::Problem problem_of(const PackedWeight& packed, const SkinnyLinear& linear) {
  tiled::Problem p{};
  describe(p, packed, linear);
  p.tokens = static_cast<int>(linear.tokens), p.cols = static_cast<int>(packed.cols);
  p.group_shift = packed.group == 128 ? 7 : 6; // of int4
  return p;
}

} // namespace

bool tiled_supports(fvlm_dtype dtype, const PackedWeight& shape, bool is_gated) {
  return dtype == sdk::bfloat16 && mma_supports(dtype, shape) && shape.rows % (is_gated ? 8 : 4) == 0 &&
         shape.cols <= most_cols && (shape.bits == 8 || shape.group == 128 || shape.group == 64);
}

bool tiled_takes(fvlm_dtype dtype, const PackedWeight& packed, const SkinnyLinear& linear) {
  const std::int64_t tokens = linear.tokens;
  return tiled_supports(dtype, packed, linear.is_gated) && mma_takes(dtype, packed, linear) &&
         tokens >= (packed.bits == 8 ? least_tokens : least_tokens_of_int4) && tokens <= max_tiled_tokens &&
         (packed.bits == 4 || tokens > few_tokens || tokens * packed.rows * packed.cols >= least_work) &&
         aligned(linear.y, 8) && aligned(linear.residual, 8) && reinterpret_cast<std::uintptr_t>(linear.bias) % 8 == 0;
}

void linear_tiled(cudaStream_t stream, const PackedWeight& packed, const SkinnyLinear& linear, int multiprocessors) {
  const Plan plan = plan_of(packed, linear.tokens, multiprocessors);
  const Launch launch{stream,
                      {linear.x.data, linear.x.stride, packed.codes, packed.row_bytes, packed.row_bytes},
                      problem_of(packed, linear),
                      plan.split};
  const auto with_tokens = [&](auto bits, auto tokens) {
    if constexpr (bits == 8 || tokens < 128)
      if (plan.warpgroups == 1) return launch.run<bits, tokens, 1, 2>();
    if constexpr (bits == 8 && tokens <= 32)
      if (plan.blocks == 2) return launch.run<bits, tokens, 2, 2>();
    launch.run<bits, tokens, 2, 1>();
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
