// linear_mma.cu: products of few tokens in 16 bits with a quantized weight on tensor cores. Such a product takes the
// time of reading the weight once. A block has 16 output features, and its warps share the columns: a lane reads 16
// bytes of codes at a time, and what they come to is an operand of the product as it stands. This holds since the order
// of columns within a product is free as long as x has the same: lane 4 r + t of a warp has columns of output features
// r and r + 8, and the same columns of token r.
//
// On a Hopper this is for few tokens: linear_streamed.cu has large weights, linear_tiled.cu has more tokens. In
// float16, and on GPUs that are no Hopper, it takes all products of up to max_mma_tokens.
#include "common/cuda_codes.cuh"
#include "common/cuda_dependent_launch.cuh"
#include "common/cuda_device.h"
#include "common/cuda_mma.cuh"
#include "elements.cuh"

#include <algorithm>

namespace fvlm::plugins {
namespace {

template <class Element>
using Number = std::conditional_t<std::is_same_v<Element, __nv_bfloat16>, sdk::BFloat16, sdk::Half>;

constexpr int rows_of_block = 16, tokens_of_tile = 8, max_warps = 16;

// Parts of a row that a warp has on the way, as far as registers reach.
__host__ __device__ constexpr int in_flight_of(int tiles) {
  return tiles < 4 ? 4 : 2;
}

struct Problem {
  PackedWeight packed;
  const void *x, *bias, *residual, *norm_weight;
  void* y;
  std::int64_t x_stride, y_stride, residual_stride;
  int tokens;
  float epsilon;
  bool is_gated;
};

__device__ inline float2 widen_pair(std::uint32_t pair, __nv_bfloat16) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ inline float2 widen_pair(std::uint32_t pair, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// Columns of x of a token. With a norm they come times its weight, and their squares are added: what is left of the
// norm is a factor of the token's, which the products get in the end.
template <class Element, int words, bool norm>
__device__ void load_x(const Element* x, const Element* norm_weight, bool counts, std::uint32_t (&pairs)[words],
                       float& squares) {
  using Words = std::conditional_t<words == 4, uint4, uint2>;
  const Words loaded = *reinterpret_cast<const Words*>(x);
  const auto* each = reinterpret_cast<const std::uint32_t*>(&loaded);
#pragma unroll
  for (int i = 0; i < words; ++i) pairs[i] = each[i];
  if constexpr (!norm) return;
  const Words weights = __ldg(reinterpret_cast<const Words*>(norm_weight));
  const auto* weight = reinterpret_cast<const std::uint32_t*>(&weights);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < words; ++i) {
    const float2 both = widen_pair(pairs[i], Element{});
    sum = fmaf(both.x, both.x, fmaf(both.y, both.y, sum));
    pairs[i] = multiply_pairs(pairs[i], weight[i], Element{});
  }
  squares += counts ? sum : 0;
}

// What the lanes of a warp have of x: a token of each tile, and the norm's weight. Where there is no token it is
// another one, whose products nobody reads.
template <class Element, int tiles>
struct Tokens {
  const Element* x[tiles];
  const Element* norm_weight;
};

// Adds the products of one word of codes of each output feature with the columns of x from `column` on.
template <int bits, class Element, int tiles, bool norm>
__device__ void multiply(std::uint32_t low, std::uint32_t high, const Tokens<Element, tiles>& tokens, int column,
                         bool is_there, float (&sums)[tiles][4], float (&squares)[tiles]) {
  constexpr int words = Codes<bits>::columns_of_word / 2;
  std::uint32_t a[words], b[words], x[words];
  Codes<bits>::template widen<Element>(low, a);
  Codes<bits>::template widen<Element>(high, b);
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) {
    load_x<Element, words, norm>(tokens.x[tile] + column, tokens.norm_weight + column, is_there, x, squares[tile]);
    if constexpr (bits == 4) {
      std::uint32_t pairs[4];
      Codes<4>::order(x, pairs);
      mma_16x8x16<Number<Element>>(sums[tile], {a[0], b[0], a[1], b[1]}, pairs[0], pairs[1]);
      mma_16x8x16<Number<Element>>(sums[tile], {a[2], b[2], a[3], b[3]}, pairs[2], pairs[3]);
    } else {
      mma_16x8x16<Number<Element>>(sums[tile], {a[0], b[0], a[1], b[1]}, x[0], x[1]);
    }
  }
}

// What a lane multiplies: codes of its two output features, and of int4 the scales of their groups.
template <int bits, int together, int in_flight>
struct LaneWeights {
  using Lane = LaneColumns<bits, together>;
  uint4 low[in_flight], high[in_flight];
  float low_scales[in_flight][Lane::slices] = {}, high_scales[in_flight][Lane::slices] = {};

  __device__ void load(const PackedWeight& packed, std::int64_t low_row, std::int64_t high_row, int first, int stride) {
    const int t = threadIdx.x % 4, cols = static_cast<int>(packed.cols);
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const int begin = first + i * stride;
      low[i] = Lane::load(packed.codes + low_row * packed.row_bytes, begin, t, cols);
      high[i] = Lane::load(packed.codes + high_row * packed.row_bytes, begin, t, cols);
      if constexpr (bits == 4)
#pragma unroll
        for (int slice = 0; slice < Lane::slices; ++slice)
          if (const int column = begin + slice * Lane::slice_width; column < cols) {
            const int group = column / static_cast<int>(packed.group);
            low_scales[i][slice] = __ldg(packed.scales + low_row * packed.groups + group);
            high_scales[i][slice] = __ldg(packed.scales + high_row * packed.groups + group);
          }
    }
  }
};

// Adds sums of whole groups, times the scales of the lane's two output features.
template <int tiles>
__device__ void add_scaled(float (&of_group)[tiles][4], float low, float high, float (&sums)[tiles][4]) {
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[tile][i] = fmaf(i < 2 ? low : high, of_group[tile][i], sums[tile][i]);
      of_group[tile][i] = 0;
    }
}

// The warp's share of the products, by the lane's two output features.
template <int bits, class Element, int tiles, int together, bool norm>
__device__ void sum_columns(const Problem& p, std::int64_t low_row, std::int64_t high_row,
                            const Tokens<Element, tiles>& tokens, float (&sums)[tiles][4], float (&squares)[tiles]) {
  using Lane = LaneColumns<bits, together>;
  constexpr int in_flight = in_flight_of(tiles);
  const int t = threadIdx.x % 4, warp = threadIdx.x / 32, stride = static_cast<int>(blockDim.x) / 32 * Lane::width;
  const int cols = static_cast<int>(p.packed.cols);
  LaneWeights<bits, together, in_flight> weights;
  weights.load(p.packed, low_row, high_row, warp * Lane::width, stride);
  start_next_kernel();
  wait_for_previous_kernel(); // x is there once it has ended
  float of_group[tiles][4] = {};
  for (int first = warp * Lane::width; first < cols;) {
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const int begin = first + i * stride;
      if (begin >= cols) break;
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const int column = begin + Lane::column(t, word), slice = word / together;
        const bool is_there = column < cols; // all lanes take part, those behind the row's end with any x
        multiply<bits, Element, tiles, norm>(word_of(weights.low[i], word), word_of(weights.high[i], word), tokens,
                                             is_there ? column : 0, is_there, bits == 4 ? of_group : sums, squares);
        if (bits == 4 && word % together == together - 1)
          add_scaled(of_group, weights.low_scales[i][slice], weights.high_scales[i][slice], sums);
      }
    }
    first += in_flight * stride;
    if (first < cols) weights.load(p.packed, low_row, high_row, first, stride);
  }
}

// Adds up what the warps have, and does what comes behind the product.
template <int bits, class Element, int tiles, bool norm>
__device__ void finish(const Problem& p, const float* sums, const float* squares, std::int64_t first_row,
                       int first_token) {
  const int warps = blockDim.x / 32;
  const std::int64_t half = p.packed.rows / 2, width = p.is_gated ? half : p.packed.rows;
  const auto sum_of = [&](int i, std::int64_t row, float factor) {
    float sum = 0;
    for (int w = 0; w < warps; ++w) sum += sums[w * tiles * 128 + i];
    sum *= factor * (bits == 8 ? p.packed.scales[row] : 1.0f);
    return p.bias ? sum + widen(static_cast<const Element*>(p.bias)[row]) : sum;
  };
  for (int i = threadIdx.x; i < tiles * 128; i += blockDim.x) {
    const int lane = i % 32, part = i / 32, is_high = part % 4 / 2;
    const std::int64_t row = first_row + lane / 4 + (p.is_gated ? 0 : is_high * 8);
    const int token = part / 4 * tokens_of_tile + lane % 4 * 2 + part % 2;
    if (row >= width || first_token + token >= p.tokens || (p.is_gated && is_high)) continue;
    float factor = 1;
    if constexpr (norm) {
      float sum = 0;
      for (int w = 0; w < warps; ++w) sum += squares[w * tiles * tokens_of_tile + token];
      factor = rsqrtf(sum / static_cast<float>(p.packed.cols) + p.epsilon);
    }
    float value = sum_of(i, row, factor);
    if (p.is_gated) value = value / (1 + __expf(-value)) * sum_of(i + 64, half + row, factor);
    if (p.residual)
      value += widen(static_cast<const Element*>(p.residual)[(first_token + token) * p.residual_stride + row]);
    static_cast<Element*>(p.y)[(first_token + token) * p.y_stride + row] = narrow<Element>(value);
  }
}

template <int bits, class Element, int tiles, int together, bool norm>
__global__ void __launch_bounds__(32 * max_warps) mma_kernel(const __grid_constant__ Problem p) {
  extern __shared__ float shared[]; // sums [warps, tiles, 4, 32], then squares [warps, tiles, tokens_of_tile]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * (p.is_gated ? 8 : rows_of_block);
  const int first_token = static_cast<int>(blockIdx.y) * tiles * tokens_of_tile;
  Tokens<Element, tiles> tokens{{}, static_cast<const Element*>(p.norm_weight)};
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) {
    const int token = first_token + tile * tokens_of_tile + lane / 4;
    tokens.x[tile] = static_cast<const Element*>(p.x) + min(token, p.tokens - 1) * p.x_stride;
  }
  const std::int64_t low = first_row + lane / 4, high = p.is_gated ? p.packed.rows / 2 + low : low + 8,
                     last = p.packed.rows - 1;
  float sums[tiles][4] = {}, squares[tiles] = {};
  sum_columns<bits, Element, tiles, together, norm>(p, min(low, last), min(high, last), tokens, sums, squares);
#pragma unroll
  for (int i = 0; i < 4 * tiles; ++i) shared[(warp * 4 * tiles + i) * 32 + lane] = sums[i / 4][i % 4];
  float* all_squares = shared + warps * tiles * 128;
  if constexpr (norm) {
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      float sum = squares[tile];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (lane % 4 == 0) all_squares[(warp * tiles + tile) * tokens_of_tile + lane / 4] = sum;
    }
  }
  __syncthreads();
  finish<bits, Element, tiles, norm>(p, shared, all_squares, first_row, first_token);
}

template <int bits, class Element, int tiles, int together, bool norm>
void launch(cudaStream_t stream, const Problem& problem, int multiprocessors) {
  const auto kernel = mma_kernel<bits, Element, tiles, together, norm>;
  static const bool early = is_compiled_for_hopper(kernel);
  const auto blocks = static_cast<unsigned>((problem.packed.rows + rows_of_block - 1) / rows_of_block);
  constexpr int width = LaneColumns<bits, together>::width, tokens_of_block = tiles * tokens_of_tile;
  const auto parts = static_cast<int>((problem.packed.cols + width - 1) / width);
  const int parts_of_warp = static_cast<int>(blocks) < 2 * multiprocessors ? 2 : in_flight_of(tiles),
            warps = std::min(max_warps, (parts + parts_of_warp - 1) / parts_of_warp);
  cudaLaunchAttribute programmatic = may_start_early();
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks, static_cast<unsigned>((problem.tokens + tokens_of_block - 1) / tokens_of_block));
  config.blockDim = static_cast<unsigned>(32 * warps);
  config.dynamicSmemBytes = static_cast<unsigned>(warps * tiles) * (512 + 4 * tokens_of_tile);
  config.stream = stream;
  config.attrs = &programmatic;
  config.numAttrs = early ? 1 : 0;
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, problem), "launch");
}

template <int bits, class Element, int together, bool norm>
void launch_tokens(cudaStream_t stream, const Problem& problem, int multiprocessors) {
  const auto launched = problem.tokens <= 8    ? launch<bits, Element, 1, together, norm>
                        : problem.tokens <= 16 ? launch<bits, Element, 2, together, norm>
                                               : launch<bits, Element, 4, together, norm>;
  launched(stream, problem, multiprocessors);
}

template <int bits, class Element, int together>
void launch_norm(cudaStream_t stream, const Problem& problem, int multiprocessors) {
  (problem.norm_weight ? launch_tokens<bits, Element, together, true>
                       : launch_tokens<bits, Element, together, false>)(stream, problem, multiprocessors);
}

bool at_16_bytes(const void* data, std::int64_t stride) {
  return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(stride)) % 16 == 0;
}

} // namespace

bool mma_supports(fvlm_dtype dtype, const PackedWeight& shape) {
  return sdk::is_one_of<sdk::BFloat16, sdk::Half>(dtype) && shape.rows > 0 && shape.cols > 0 &&
         shape.cols % (shape.bits == 8 ? 16 : 32) == 0;
}

bool mma_takes(fvlm_dtype dtype, const PackedWeight& packed, const SkinnyLinear& linear) {
  return mma_supports(dtype, packed) && at_16_bytes(packed.codes, packed.row_bytes) &&
         at_16_bytes(linear.x.data, linear.x.stride * 2) && at_16_bytes(linear.norm_weight, 0);
}

void linear_mma(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& packed, const SkinnyLinear& linear,
                int multiprocessors) {
  const Problem problem{
      packed,         linear.x.data,   linear.bias,     linear.residual.data,   linear.norm_weight,
      linear.y.data,  linear.x.stride, linear.y.stride, linear.residual.stride, static_cast<int>(linear.tokens),
      linear.epsilon, linear.is_gated};
  const auto with = [&](auto element) {
    using Element = decltype(element);
    const auto launched = packed.bits == 8                                     ? launch_norm<8, Element, 4>
                          : packed.group % LaneColumns<4, 4>::slice_width == 0 ? launch_norm<4, Element, 4>
                          : packed.group % LaneColumns<4, 2>::slice_width == 0 ? launch_norm<4, Element, 2>
                                                                               : launch_norm<4, Element, 1>;
    launched(stream, problem, multiprocessors);
  };
  dtype == sdk::bfloat16 ? with(__nv_bfloat16{}) : with(__half{});
}

} // namespace fvlm::plugins
