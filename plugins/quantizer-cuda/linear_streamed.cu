// linear_streamed.cu: products of up to 8 tokens in bfloat16 with a quantized weight, streamed through shared memory by
// TMA (streamed_product.cuh). For Hopper, and weights whose rows are whole lines of 128 bytes.
#include "launches.h"
#include "streamed_product.cuh"

namespace fvlm::plugins {
namespace {

// Smaller weights are read faster by threads (linear_mma.cu), whose first loads are back sooner.
constexpr std::int64_t least_codes = 1 << 20;
constexpr std::int64_t most_tokens = 4, most_tokens_of_wide_int4 = 8;
constexpr std::int64_t most_cols = 16 << 10, most_normed_cols = 8 << 10; // of which a thread keeps its part
// x is in shared memory as a whole, beside the ring of the weight: so many numbers, in rows of multiples of row_unit.
constexpr std::int64_t most_numbers_of_x = 32 << 10, row_unit = 1 << 10;

struct Launch {
  cudaStream_t stream;
  const PackedWeight& packed;
  streamed::Problem problem;

  template <int bits, int columns, int lines, int stages>
  void run() const {
    if (problem.rows <= streamed::tile_rows) return run_tiles<streamed::Layout<bits, columns, lines, stages, 1>>();
    run_tiles<streamed::Layout<bits, columns, lines, stages, 2>>();
  }
  template <class Layout>
  void run_tiles() const {
    streamed::launch<Layout>(stream, packed.codes, packed.row_bytes, problem);
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
      packed.cols > (linear.norm_weight ? most_normed_cols : most_cols) || packed.rows * packed.cols < least_codes)
    return false;
  if (packed.bits == 4 && packed.group != streamed::group) return false;
  return linear.tokens * ((packed.cols + row_unit - 1) / row_unit * row_unit) <= most_numbers_of_x &&
         linear.tokens <=
             (packed.bits == 4 && is_wide(packed, multiprocessors) ? most_tokens_of_wide_int4 : most_tokens);
}

// The layouts were chosen by measurement (bench/LOG.md, 2026-11-28).
void linear_streamed(cudaStream_t stream, const PackedWeight& packed, const SkinnyLinear& linear, int multiprocessors) {
  Launch launch{stream, packed, {}};
  streamed::Problem& p = launch.problem;
  p.x = linear.x.data, p.x_stride = linear.x.stride;
  describe(p, packed, linear);
  p.rows = static_cast<int>(linear.tokens), p.inner = static_cast<int>(packed.cols);
  const bool wide = is_wide(packed, multiprocessors);
  const bool is_long = packed.cols >= 4096, is_narrow = packed.rows < 32 * static_cast<std::int64_t>(multiprocessors);
  if (packed.bits == 8) {
    p.on_their_way = wide ? 3 : is_narrow && !is_long ? 4 : 2;
    p.starts_next_early = !wide && !is_long;
    if (wide) return launch.run<8, 64, 2, 5>();
    if (is_long) return launch.run<8, 16, 8, 8>();
    return is_narrow ? launch.run<8, 16, 4, 4>() : launch.run<8, 48, 2, 8>();
  }
  p.on_their_way = 2, p.starts_next_early = !wide;
  if (wide && p.rows > 4) return launch.run_tiles<streamed::Layout<4, 64, 1, 6, 4>>();
  if (wide) return launch.run<4, 64, 1, 8>();
  return is_long ? launch.run<4, 16, 4, 8>() : launch.run<4, 32, 4, 2>();
}

} // namespace fvlm::plugins
