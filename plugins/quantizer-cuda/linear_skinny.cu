// linear_skinny.cu: products of a few tokens with a quantized weight, which reads the weight once. A warp has one
// output feature; its lanes have 8 columns each, whose codes become float32 in registers.
#include "elements.cuh"

namespace fvlm::plugins {
namespace {

constexpr int warps = 4, columns = 8; // of a block; of a lane

template <int bits>
__device__ void load_codes(const std::uint8_t* row, std::int64_t column, float (&codes)[columns]) {
  if constexpr (bits == 8) {
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(row + column));
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      const std::uint32_t word = i < 4 ? words.x : words.y;
      codes[i] = static_cast<float>(static_cast<std::int8_t>(word >> (i % 4 * 8)));
    }
  } else {
    const std::uint32_t word = __ldg(reinterpret_cast<const std::uint32_t*>(row + column / 2));
#pragma unroll
    for (int i = 0; i < columns; ++i) codes[i] = static_cast<float>(static_cast<int>((word >> (i * 4)) & 15) - 8);
  }
}

template <class Element>
struct alignas(16) Columns {
  Element at[columns];
};

template <int bits, class Element, int tokens, bool aligned>
__global__ void __launch_bounds__(32 * warps)
    linear_kernel(PackedWeight packed, const Element* x, std::int64_t x_stride, int count, const Element* bias,
                  Element* y, std::int64_t y_stride) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
  if (row >= packed.rows) return;
  const int lane = threadIdx.x % 32;
  const std::uint8_t* code_row = packed.codes + row * packed.row_bytes;
  const float* scales = packed.scales + row * packed.groups;
  float sums[tokens] = {};
  for (std::int64_t column = lane * columns; column < packed.cols; column += 32 * columns) {
    float codes[columns];
    if constexpr (aligned) {
      load_codes<bits>(code_row, column, codes);
    } else {
#pragma unroll
      for (int i = 0; i < columns; ++i)
        codes[i] = column + i < packed.cols ? code_at<bits>(code_row, column + i) : 0.0f;
    }
    const float scale = bits == 8 ? 1.0f : scales[column / packed.group]; // groups begin at multiples of `columns`
#pragma unroll
    for (int t = 0; t < tokens; ++t) {
      if (t >= count) break;
      const Element* from = x + t * x_stride + column;
      float sum = 0;
      if constexpr (aligned) {
        const Columns<Element> all = *reinterpret_cast<const Columns<Element>*>(from);
#pragma unroll
        for (int i = 0; i < columns; ++i) sum = fmaf(codes[i], widen(all.at[i]), sum);
      } else {
#pragma unroll
        for (int i = 0; i < columns; ++i)
          if (column + i < packed.cols) sum = fmaf(codes[i], widen(from[i]), sum);
      }
      sums[t] = fmaf(scale, sum, sums[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < tokens; ++t) {
    if (t >= count) break;
    float sum = sums[t];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane != 0) continue;
    if (bits == 8) sum *= scales[0];
    y[t * y_stride + row] = narrow<Element>(bias ? sum + widen(bias[row]) : sum);
  }
}

template <int bits, class Element, int tokens>
void launch(cudaStream_t stream, const PackedWeight& packed, MatrixView x, const void* bias, MatrixView y, int count) {
  const auto at_16_bytes = [](const void* data, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % 16 == 0;
  };
  const bool aligned = packed.cols % columns == 0 && reinterpret_cast<std::uintptr_t>(packed.codes) % 8 == 0 &&
                       at_16_bytes(x.data, x.stride * static_cast<std::int64_t>(sizeof(Element)));
  const auto kernel =
      aligned ? linear_kernel<bits, Element, tokens, true> : linear_kernel<bits, Element, tokens, false>;
  kernel<<<static_cast<unsigned>((packed.rows + warps - 1) / warps), 32 * warps, 0, stream>>>(
      packed, static_cast<const Element*>(x.data), x.stride, count, static_cast<const Element*>(bias),
      static_cast<Element*>(y.data), y.stride);
}

} // namespace

void linear_skinny(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& packed, MatrixView x, const void* bias,
                   MatrixView y, std::int64_t tokens) {
  const int count = static_cast<int>(tokens);
  for_types(dtype, packed.bits, [&](auto element, auto bits) {
    using Element = decltype(element);
    const auto launched = count == 1   ? launch<bits, Element, 1>
                          : count == 2 ? launch<bits, Element, 2>
                          : count <= 4 ? launch<bits, Element, 4>
                          : count <= 8 ? launch<bits, Element, 8>
                                       : launch<bits, Element, 16>;
    launched(stream, packed, x, bias, y, count);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
