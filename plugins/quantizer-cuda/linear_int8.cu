// linear_int8.cu: products of int8 activations with int8 weights on tensor cores, which add up as integers. For few
// tokens blocks and lanes share the weight as in linear_mma.cu: 16 bytes of a lane are four operands as they stand.
#include "elements.cuh"

#include <algorithm>

namespace fvlm::plugins {
namespace {

constexpr int rows_of_block = 16, tokens_of_tile = 8, max_tiles = 4, max_warps = 16, width = 64;
constexpr int threads = 128;

// One block a token. The scale is that of compressed-tensors: the codes reach from -128 to 127.
template <class Element>
__global__ void __launch_bounds__(threads)
    quantize_kernel(const Element* x, std::int64_t x_stride, std::int64_t cols, Int8Rows rows) {
  __shared__ float largest_of[threads / 32];
  const Element* from = x + blockIdx.x * x_stride;
  float largest = 0;
  for (std::int64_t c = threadIdx.x; c < cols; c += threads) largest = fmaxf(largest, fabsf(widen(from[c])));
  for (int apart = 16; apart > 0; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, apart));
  if (threadIdx.x % 32 == 0) largest_of[threadIdx.x / 32] = largest;
  __syncthreads();
  for (const float each : largest_of) largest = fmaxf(largest, each);
  const float scale = __fdiv_rn(largest, 127.5f), divisor = scale == 0 ? 1.0f : scale;
  std::int8_t* to = rows.codes + blockIdx.x * rows.stride;
  for (std::int64_t c = threadIdx.x; c < rows.stride; c += threads) {
    const float code = c < cols ? rintf(__fdiv_rn(widen(from[c]), divisor)) : 0;
    to[c] = static_cast<std::int8_t>(fminf(fmaxf(code, -128.0f), 127.0f));
  }
  if (threadIdx.x == 0) rows.scales[blockIdx.x] = scale;
}

template <class Element>
__global__ void __launch_bounds__(threads) dequantize_kernel(Int8Rows rows, std::int64_t cols, Element* x) {
  for (std::int64_t c = threadIdx.x; c < cols; c += threads)
    x[blockIdx.x * cols + c] =
        narrow<Element>(static_cast<float>(rows.codes[blockIdx.x * rows.stride + c]) * rows.scales[blockIdx.x]);
}

__device__ inline void mma_int8(int (&sum)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct Problem {
  PackedWeight packed;
  Int8Rows x;
  const void* bias;
  void* y;
  std::int64_t y_stride;
  int tokens;
};

template <class Element, int tiles>
__global__ void __launch_bounds__(32 * max_warps) int8_kernel(const __grid_constant__ Problem p) {
  extern __shared__ int shared[]; // [warps, tiles, 4, 32]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * rows_of_block, last = p.packed.rows - 1;
  const int first_token = static_cast<int>(blockIdx.y) * tiles * tokens_of_tile;
  const std::uint8_t *low = p.packed.codes + min(first_row + lane / 4, last) * p.packed.row_bytes,
                     *high = p.packed.codes + min(first_row + lane / 4 + 8, last) * p.packed.row_bytes;
  int sums[tiles][4] = {};
  wait_for_previous_kernel();
#pragma unroll 4
  for (std::int64_t c = warp * width + lane % 4 * 16; c < p.packed.cols; c += warps * width) {
    const uint4 a = load_codes(low + c), b = load_codes(high + c);
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      const int token = first_token + tile * tokens_of_tile + lane / 4;
      uint4 x{};
      if (token < p.tokens) x = *reinterpret_cast<const uint4*>(p.x.codes + token * p.x.stride + c);
      mma_int8(sums[tile], a.x, b.x, a.y, b.y, x.x, x.y);
      mma_int8(sums[tile], a.z, b.z, a.w, b.w, x.z, x.w);
    }
  }
#pragma unroll
  for (int i = 0; i < 4 * tiles; ++i) shared[(warp * 4 * tiles + i) * 32 + lane] = sums[i / 4][i % 4];
  __syncthreads();
  for (int i = threadIdx.x; i < tiles * 128; i += blockDim.x) {
    const int of_lane = i % 32, part = i / 32;
    const std::int64_t row = first_row + of_lane / 4 + part % 4 / 2 * 8;
    const int token = first_token + part / 4 * tokens_of_tile + of_lane % 4 * 2 + part % 2;
    if (row >= p.packed.rows || token >= p.tokens) continue;
    int sum = 0;
    for (int w = 0; w < warps; ++w) sum += shared[w * tiles * 128 + i];
    const float value = static_cast<float>(sum) * p.x.scales[token] * p.packed.scales[row];
    static_cast<Element*>(p.y)[token * p.y_stride + row] =
        narrow<Element>(p.bias ? value + widen(static_cast<const Element*>(p.bias)[row]) : value);
  }
}

// y = sums times both scales, and the bias.
template <class Element>
__global__ void __launch_bounds__(threads)
    scale_kernel(const int* sums, Int8Rows x, const float* scales, const Element* bias, Element* y,
                 std::int64_t y_stride, std::int64_t rows) {
  const float scale = x.scales[blockIdx.x];
  for (std::int64_t r = threadIdx.x; r < rows; r += threads) {
    const float value = static_cast<float>(sums[blockIdx.x * rows + r]) * scale * scales[r];
    y[blockIdx.x * y_stride + r] = narrow<Element>(bias ? value + widen(bias[r]) : value);
  }
}

template <class Launch>
void for_element(fvlm_dtype dtype, const Launch& launch) {
  for_types(dtype, 8, [&](auto element, auto) { launch(element); });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

template <class Element, int tiles>
void launch(cudaStream_t stream, const Problem& problem) {
  const auto blocks = static_cast<unsigned>((problem.packed.rows + rows_of_block - 1) / rows_of_block),
             parts = static_cast<unsigned>((problem.tokens + tiles * tokens_of_tile - 1) / (tiles * tokens_of_tile));
  const int warps = std::clamp(static_cast<int>((problem.packed.cols + 2 * width - 1) / (2 * width)), 1, max_warps);
  launch_early(int8_kernel<Element, tiles>, dim3(blocks, parts), 32 * warps,
               static_cast<std::size_t>(warps * tiles) * 512, stream, problem);
}

} // namespace

void quantize_rows(cudaStream_t stream, fvlm_dtype dtype, MatrixView x, std::int64_t tokens, std::int64_t cols,
                   const Int8Rows& rows) {
  for_element(dtype, [&](auto element) {
    using Element = decltype(element);
    quantize_kernel<<<static_cast<unsigned>(tokens), threads, 0, stream>>>(static_cast<const Element*>(x.data),
                                                                           x.stride, cols, rows);
  });
}

void dequantize_rows(cudaStream_t stream, fvlm_dtype dtype, const Int8Rows& rows, std::int64_t tokens,
                     std::int64_t cols, void* x) {
  for_element(dtype, [&](auto element) {
    using Element = decltype(element);
    dequantize_kernel<<<static_cast<unsigned>(tokens), threads, 0, stream>>>(rows, cols, static_cast<Element*>(x));
  });
}

void linear_int8(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& packed, const Int8Rows& x, const void* bias,
                 MatrixView y, std::int64_t tokens) {
  const Problem problem{packed, x, bias, y.data, y.stride, static_cast<int>(tokens)};
  for_element(dtype, [&](auto element) {
    using Element = decltype(element);
    (tokens <= 8    ? launch<Element, 1>
     : tokens <= 16 ? launch<Element, 2>
                    : launch<Element, max_tiles>)(stream, problem);
  });
}

void scale_sums(cudaStream_t stream, fvlm_dtype dtype, const int* sums, const PackedWeight& packed, const Int8Rows& x,
                const void* bias, MatrixView y, std::int64_t tokens) {
  for_element(dtype, [&](auto element) {
    using Element = decltype(element);
    scale_kernel<<<static_cast<unsigned>(tokens), threads, 0, stream>>>(
        sums, x, packed.scales, static_cast<const Element*>(bias), static_cast<Element*>(y.data), y.stride,
        packed.rows);
  });
}

} // namespace fvlm::plugins
