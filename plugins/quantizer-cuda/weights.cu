// weights.cu: weights to codes and back, and fake quantization. A block has one group of columns of one row.
#include "elements.cuh"

namespace fvlm::plugins {
namespace {

constexpr int threads = 128, warps = threads / 32;

// The same value in every thread; sums in a fixed order.
template <class Value, class Combine>
__device__ Value over_block(Value value, const Combine& combine) {
  __shared__ Value parts[warps];
  for (int lane = 16; lane > 0; lane /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, lane));
  __syncthreads(); // the previous result has been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (int warp = 1; warp < warps; ++warp) value = combine(value, parts[warp]);
  return value;
}

__device__ float divisor_of(float scale) {
  return scale == 0 ? 1.0f : scale;
}

template <int bits>
__device__ float clipped(float code) {
  const float low = bits == 8 ? -127.0f : -8.0f, high = bits == 8 ? 127.0f : 7.0f;
  return code > high ? high : code >= low ? code : low; // NaN becomes the least code: its scale is NaN too
}

template <int bits>
__device__ float code_of(float weight, float divisor) {
  return clipped<bits>(rintf(__fdiv_rn(weight, divisor)));
}

// The scale of the group that starts at `weight`, as fvlm/quantizer.h defines it.
template <int bits, class Element>
__device__ float scale_of(const Element* weight, const float* importance, std::int64_t count) {
  std::uint32_t largest_bits = 0; // the bits of |w| have the order of |w|, and NaN is the largest
  for (std::int64_t i = threadIdx.x; i < count; i += threads)
    largest_bits = max(largest_bits, __float_as_uint(widen(weight[i])) & 0x7fffffffu);
  const float largest =
      __uint_as_float(over_block(largest_bits, [](std::uint32_t a, std::uint32_t b) { return max(a, b); }));
  if constexpr (bits == 8) return __fdiv_rn(largest, 127.0f);
  float best = __fdiv_rn(largest, 7.0f), least = 0;
  for (int candidate = 0; candidate <= 12; ++candidate) {
    const float d = 7.0f + 0.25f * static_cast<float>(candidate), scale = __fdiv_rn(largest, d),
                divisor = divisor_of(scale);
    float sum = 0;
    for (std::int64_t i = threadIdx.x; i < count; i += threads) {
      const float exact = __fdiv_rn(widen(weight[i]), divisor), off = exact - clipped<bits>(rintf(exact));
      sum += off * off * (importance ? importance[i] : 1.0f);
    }
    const float error = over_block(sum, [](float a, float b) { return a + b; }) / (d * d);
    if (candidate > 0 && !(error < least)) continue;
    least = error;
    best = scale;
  }
  return best;
}

template <int bits, class Element>
__global__ void __launch_bounds__(threads)
    quantize_kernel(PackedWeight packed, const Element* weight, std::int64_t stride, const float* importance) {
  const std::int64_t row = blockIdx.x / packed.groups, group = blockIdx.x % packed.groups, begin = group * packed.group;
  const Element* from = weight + row * stride + begin;
  const float scale = scale_of<bits>(from, importance ? importance + begin : nullptr, packed.group);
  const float divisor = divisor_of(scale);
  std::uint8_t* codes = packed.codes + row * packed.row_bytes;
  if constexpr (bits == 8) {
    for (std::int64_t i = threadIdx.x; i < packed.group; i += threads)
      codes[begin + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(code_of<bits>(widen(from[i]), divisor)));
  } else {
    const auto nibble = [&](std::int64_t i) {
      return i < packed.group ? static_cast<int>(code_of<bits>(widen(from[i]), divisor)) + 8 : 0;
    };
    for (std::int64_t pair = threadIdx.x; pair < (packed.group + 1) / 2; pair += threads)
      codes[begin / 2 + pair] = static_cast<std::uint8_t>(nibble(2 * pair) | nibble(2 * pair + 1) << 4);
    if (group == packed.groups - 1)
      for (std::int64_t byte = (packed.cols + 1) / 2 + threadIdx.x; byte < packed.row_bytes; byte += threads)
        codes[byte] = 0;
  }
  if (threadIdx.x == 0) packed.scales[row * packed.groups + group] = scale;
}

template <int bits, class Element>
__global__ void __launch_bounds__(threads)
    dequantize_kernel(PackedWeight packed, Element* weight, std::int64_t stride) {
  const std::int64_t row = blockIdx.x / packed.groups, group = blockIdx.x % packed.groups, begin = group * packed.group;
  const float scale = packed.scales[row * packed.groups + group];
  const std::uint8_t* codes = packed.codes + row * packed.row_bytes;
  for (std::int64_t i = begin + threadIdx.x; i < begin + packed.group; i += threads)
    weight[row * stride + i] = narrow<Element>(code_at<bits>(codes, i) * scale);
}

// The same by packs of eight numbers, of which the codes are `bits` bytes. A block has a row.
constexpr int pack = 8;
template <int bits, class Element>
__global__ void __launch_bounds__(threads)
    dequantize_packs_kernel(PackedWeight packed, Element* weight, std::int64_t stride) {
  using Codes = std::conditional_t<bits == 8, uint2, std::uint32_t>;
  const std::int64_t row = blockIdx.x;
  const auto* codes = reinterpret_cast<const Codes*>(packed.codes + row * packed.row_bytes);
  const int packs = static_cast<int>(packed.cols / pack), packs_of_group = static_cast<int>(packed.group / pack);
  for (int i = static_cast<int>(threadIdx.x); i < packs; i += static_cast<int>(blockDim.x)) {
    const Codes own = codes[i];
    const float scale = packed.scales[row * packed.groups + i / packs_of_group];
    alignas(16) Element numbers[pack];
#pragma unroll
    for (int j = 0; j < pack; ++j)
      numbers[j] = narrow<Element>(code_at<bits>(reinterpret_cast<const std::uint8_t*>(&own), j) * scale);
    auto* to = reinterpret_cast<uint4*>(weight + row * stride + i * pack);
#pragma unroll
    for (int j = 0; j < static_cast<int>(sizeof numbers / sizeof(uint4)); ++j)
      to[j] = reinterpret_cast<const uint4*>(numbers)[j];
  }
}
bool has_packs(const PackedWeight& packed, const MatrixView& weight) {
  return packed.cols % pack == 0 && packed.group % pack == 0 && weight.stride % pack == 0 &&
         (reinterpret_cast<std::uintptr_t>(weight.data) | reinterpret_cast<std::uintptr_t>(packed.codes)) % 16 == 0;
}

template <int bits, class Element>
__global__ void __launch_bounds__(threads)
    fake_kernel(PackedWeight shape, const Element* weight, std::int64_t stride, Element* out, std::int64_t out_stride) {
  const std::int64_t row = blockIdx.x / shape.groups, begin = blockIdx.x % shape.groups * shape.group;
  const Element* from = weight + row * stride + begin;
  const float scale = scale_of<bits>(from, nullptr, shape.group), divisor = divisor_of(scale);
  for (std::int64_t i = threadIdx.x; i < shape.group; i += threads)
    out[row * out_stride + begin + i] = narrow<Element>(code_of<bits>(widen(from[i]), divisor) * scale);
}

template <int bits, class Element>
__global__ void __launch_bounds__(threads)
    fake_backward_kernel(PackedWeight shape, const Element* weight, std::int64_t stride, const Element* d_out,
                         std::int64_t d_out_stride, Element* d_weight, std::int64_t d_weight_stride) {
  const std::int64_t row = blockIdx.x / shape.groups, begin = blockIdx.x % shape.groups * shape.group;
  const Element* from = weight + row * stride + begin;
  const float divisor = divisor_of(scale_of<bits>(from, nullptr, shape.group));
  for (std::int64_t i = threadIdx.x; i < shape.group; i += threads) {
    const float code = rintf(__fdiv_rn(widen(from[i]), divisor));
    const bool is_clipped = code > (bits == 8 ? 127.0f : 7.0f) || code < (bits == 8 ? -127.0f : -8.0f);
    d_weight[row * d_weight_stride + begin + i] =
        is_clipped ? narrow<Element>(0.0f) : d_out[row * d_out_stride + begin + i];
  }
}

template <class Element>
__global__ void bias_kernel(const Element* bias, Element* y, std::int64_t stride, std::int64_t rows) {
  for (std::int64_t i = threadIdx.x; i < rows; i += blockDim.x) {
    Element& value = y[blockIdx.x * stride + i];
    value = narrow<Element>(widen(value) + widen(bias[i]));
  }
}

__global__ void barrier_kernel() {}

unsigned blocks_of(const PackedWeight& packed) {
  return static_cast<unsigned>(packed.rows * packed.groups);
}

template <class Element>
Element* data_of(const MatrixView& matrix) {
  return static_cast<Element*>(matrix.data);
}

} // namespace

void quantize(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& packed, MatrixView weight,
              const float* importance) {
  if (blocks_of(packed) == 0) return;
  for_types(dtype, packed.bits, [&](auto element, auto bits) {
    using Element = decltype(element);
    quantize_kernel<bits>
        <<<blocks_of(packed), threads, 0, stream>>>(packed, data_of<const Element>(weight), weight.stride, importance);
  });
  // Products (linear_streamed.cu, linear_tiled.cu) read a weight before the kernel ahead of them has ended: this one.
  barrier_kernel<<<1, 1, 0, stream>>>();
  sdk::check_cuda(cudaGetLastError(), "launch");
}

void dequantize(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& packed, MatrixView weight) {
  if (blocks_of(packed) == 0) return;
  for_types(dtype, packed.bits, [&](auto element, auto bits) {
    using Element = decltype(element);
    Element* to = data_of<Element>(weight);
    if (has_packs(packed, weight))
      dequantize_packs_kernel<bits>
          <<<static_cast<unsigned>(packed.rows), threads, 0, stream>>>(packed, to, weight.stride);
    else
      dequantize_kernel<bits><<<blocks_of(packed), threads, 0, stream>>>(packed, to, weight.stride);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

void fake_quantize(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& shape, MatrixView weight,
                   MatrixView out) {
  if (blocks_of(shape) == 0) return;
  for_types(dtype, shape.bits, [&](auto element, auto bits) {
    using Element = decltype(element);
    fake_kernel<bits><<<blocks_of(shape), threads, 0, stream>>>(shape, data_of<const Element>(weight), weight.stride,
                                                                data_of<Element>(out), out.stride);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

void fake_quantize_backward(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& shape, MatrixView weight,
                            MatrixView d_out, MatrixView d_weight) {
  if (blocks_of(shape) == 0) return;
  for_types(dtype, shape.bits, [&](auto element, auto bits) {
    using Element = decltype(element);
    fake_backward_kernel<bits><<<blocks_of(shape), threads, 0, stream>>>(
        shape, data_of<const Element>(weight), weight.stride, data_of<const Element>(d_out), d_out.stride,
        data_of<Element>(d_weight), d_weight.stride);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

void add_bias(cudaStream_t stream, fvlm_dtype dtype, const void* bias, MatrixView y, std::int64_t tokens,
              std::int64_t rows) {
  for_types(dtype, 8, [&](auto element, auto) {
    using Element = decltype(element);
    bias_kernel<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(static_cast<const Element*>(bias),
                                                                   data_of<Element>(y), y.stride, rows);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
