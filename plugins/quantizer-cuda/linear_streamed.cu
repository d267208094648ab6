// linear_streamed.cu: products of up to 8 tokens in bfloat16 with a quantized weight, streamed through shared memory by
// TMA (streamed_product.cuh). For Hopper, and weights whose rows are whole lines of 128 bytes.
#include "codes.cuh"
#include "streamed_product.cuh"

namespace fvlm::plugins {
namespace {

// words: of x for the numbers in a word of the weight; products: of mma.sync in a step. left() makes operands of what
// ldmatrix loads of 16 columns, right() those of x; order(): eight numbers of x in the order in which they are read.
template <int bits>
struct CodesWeight {
  static constexpr int words = 16 / bits, products = words;
  static constexpr bool has_groups = bits == 4;
  static constexpr float offset = Codes<bits>::template offset<__nv_bfloat16>;
  static_assert(offset >= 0 && products * bits == 16); // nvcc warns of constants that only sm_90a uses
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __device__ static void left(const hopper::Matrix8x8x4& codes, std::uint32_t (&pairs)[products][4]) {
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
      std::uint32_t low[words], high[words];
      Codes<bits>::template widen<__nv_bfloat16, true>(codes.at[2 * piece], low);
      Codes<bits>::template widen<__nv_bfloat16, true>(codes.at[2 * piece + 1], high);
#pragma unroll
      for (int i = 0; i < words / 2; ++i) {
        auto& to = pairs[piece * words / 2 + i];
        to[0] = low[2 * i], to[1] = high[2 * i], to[2] = low[2 * i + 1], to[3] = high[2 * i + 1];
      }
    }
  }
  __device__ static void order(const std::uint32_t (&x)[4], std::uint32_t (&ordered)[4]) {
    if constexpr (bits == 4) {
      Codes<4>::order(x, ordered);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) ordered[i] = x[i];
    }
  }
  // x comes in order, since it is resident.
  __device__ static void right(const std::uint32_t (&x)[2][words], std::uint32_t (&pairs)[products][2]) {
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
#pragma unroll
      for (int i = 0; i < words / 2; ++i)
        pairs[piece * words / 2 + i][0] = x[piece][2 * i], pairs[piece * words / 2 + i][1] = x[piece][2 * i + 1];
    }
  }
#endif
};

// Smaller weights are read faster by threads (linear_mma.cu), whose first loads are back sooner.
constexpr std::int64_t least_codes = 4 << 20;
// x is brought to shared memory as a whole.
constexpr std::int64_t most_tokens = 4, most_tokens_of_wide_int4 = 8, most_numbers_of_x = 20'000;
constexpr std::int64_t most_cols = 16 << 10; // whose norm's weight and scales are in shared memory

struct Launch {
  cudaStream_t stream;
  const PackedWeight& packed;
  streamed::Problem problem;
  int split;

  template <int bits, int blocks, int columns, int lines, int stages>
  void run() const {
    using streamed::Layout;
    using Weight = CodesWeight<bits>;
    if (problem.norm_weight)
      streamed::launch<Layout<Weight, columns, lines, stages, true, blocks>>(stream, packed.codes, packed.row_bytes,
                                                                             problem, split);
    else
      streamed::launch<Layout<Weight, columns, lines, stages, false, blocks>>(stream, packed.codes, packed.row_bytes,
                                                                              problem, split);
  }
};

// Whether a block of many output features leaves enough blocks.
bool is_wide(const PackedWeight& shape, int multiprocessors) {
  return shape.rows >= 96 * static_cast<std::int64_t>(multiprocessors);
}

} // namespace

bool streamed_takes(fvlm_dtype dtype, const PackedWeight& packed, const SkinnyLinear& linear, int multiprocessors) {
  const std::int64_t line = packed.bits == 8 ? 128 : 256;
  if (dtype != sdk::bfloat16 || !mma_takes(dtype, packed, linear) || packed.cols % line != 0 ||
      packed.cols > most_cols || packed.rows * packed.cols < least_codes)
    return false;
  if (packed.bits == 4 && packed.group != 128 && packed.group != 64) return false;
  return linear.tokens * packed.cols <= most_numbers_of_x &&
         linear.tokens <=
             (packed.bits == 4 && is_wide(packed, multiprocessors) ? most_tokens_of_wide_int4 : most_tokens);
}

// The layouts were chosen by measurement (bench/LOG.md, 2026-11-26).
void linear_streamed(cudaStream_t stream, const PackedWeight& packed, const SkinnyLinear& linear, int multiprocessors) {
  Launch launch{stream, packed, {}, 1};
  streamed::Problem& p = launch.problem;
  p.x = linear.x.data, p.x_stride = linear.x.stride;
  describe(p, packed, linear);
  p.rows = static_cast<int>(linear.tokens), p.inner = static_cast<int>(packed.cols);
  const bool wide = is_wide(packed, multiprocessors);
  const bool is_long = packed.cols >= 4096, is_narrow = packed.rows < 32 * static_cast<std::int64_t>(multiprocessors);
  p.starts_next_early = packed.bits == 4;
  if (packed.bits == 8) {
    if (wide) return launch.run<8, 2, 64, 2, 5>();
    if (is_long) return launch.run<8, 2, 16, 4, 12>();
    return is_narrow ? launch.run<8, 3, 32, 2, 8>() : launch.run<8, 2, 48, 2, 5>();
  }
  if (wide) return launch.run<4, 2, 64, 2, 4>();
  if (is_long) {
    launch.split = 2;
    return launch.run<4, 2, 32, 4, 4>();
  }
  return is_narrow ? launch.run<4, 3, 32, 4, 4>() : launch.run<4, 2, 48, 4, 2>();
}

} // namespace fvlm::plugins
