// launches.h: the kernels of quantizer-cuda, by their host side.
#pragma once

#include <fvlm/cuda.hpp>

#include <cstdint>

namespace fvlm::plugins {

// A packed weight (fvlm/quantizer.h) of either scheme.
struct PackedWeight {
  int bits; // 8 or 4
  std::int64_t rows, cols;
  std::int64_t row_bytes;        // of the codes of a row
  std::int64_t group, groups;    // columns that share a scale, and scales of a row
  std::uint8_t* codes = nullptr; // int8 codes as bytes
  float* scales = nullptr;
};

inline std::int64_t int4_group(std::int64_t cols) {
  for (const std::int64_t size : {128, 64, 32})
    if (cols % size == 0 && (cols >= 4 * size || size == 32)) return size;
  return cols;
}

inline PackedWeight packed_shape(int bits, std::int64_t rows, std::int64_t cols) {
  const std::int64_t group = bits == 8 ? cols : int4_group(cols);
  const std::int64_t groups = bits == 8 ? 1 : cols == 0 ? 0 : cols / group;
  return {bits, rows, cols, bits == 8 ? cols : (cols + 7) / 8 * 4, group, groups};
}

// A row-major matrix of the call's type; the stride counts elements.
struct MatrixView {
  void* data = nullptr;
  std::int64_t stride = 0;
};

constexpr std::int64_t max_skinny_tokens = 16, max_mma_tokens = 128, max_tiled_tokens = 256;

void quantize(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& packed, MatrixView weight,
              const float* importance);
void dequantize(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& packed, MatrixView weight);
void fake_quantize(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& shape, MatrixView weight, MatrixView out);
void fake_quantize_backward(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& shape, MatrixView weight,
                            MatrixView d_out, MatrixView d_weight);
// y [tokens, rows] += bias [rows]
void add_bias(cudaStream_t stream, fvlm_dtype dtype, const void* bias, MatrixView y, std::int64_t tokens,
              std::int64_t rows);
// y = x unpack(packed)^T + bias for 1 to max_skinny_tokens tokens. bias may be NULL.
void linear_skinny(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& packed, MatrixView x, const void* bias,
                   MatrixView y, std::int64_t tokens);

// A product of some tokens, with what may come before and behind it: see FVLM_QUANTIZED_*.
struct SkinnyLinear {
  MatrixView x, y, residual; // residual: may be nothing
  const void *bias, *norm_weight;
  float epsilon;
  bool is_gated;
  std::int64_t tokens;
};
// What the kernels' own descriptions of a product have in common.
template <class Problem>
void describe(Problem& p, const PackedWeight& packed, const SkinnyLinear& linear) {
  p.bias = linear.bias, p.residual = linear.residual.data, p.norm_weight = linear.norm_weight, p.y = linear.y.data;
  p.residual_stride = linear.residual.stride, p.y_stride = linear.y.stride;
  p.scales = packed.scales, p.groups = static_cast<int>(packed.groups);
  p.width = static_cast<int>(linear.is_gated ? packed.rows / 2 : packed.rows);
  p.epsilon = linear.epsilon, p.is_gated = linear.is_gated;
}
// In 16 bits, for most widths; mma_takes() also looks at addresses. Any number of tokens is right, up to max_mma_tokens
// it pays. On Hopper the weight is read before the previous kernel has ended, so a kernel that writes it must not let
// the next one start early; those that pack weights do not.
bool mma_supports(fvlm_dtype dtype, const PackedWeight& shape);
bool mma_takes(fvlm_dtype dtype, const PackedWeight& packed, const SkinnyLinear& linear);
void linear_mma(cudaStream_t stream, fvlm_dtype dtype, const PackedWeight& packed, const SkinnyLinear& linear,
                int multiprocessors);

// In bfloat16 on Hopper, for large weights and at most 8 tokens. The weight is read as early as by linear_mma.
bool streamed_takes(fvlm_dtype dtype, const PackedWeight& packed, const SkinnyLinear& linear, int multiprocessors);
void linear_streamed(cudaStream_t stream, const PackedWeight& packed, const SkinnyLinear& linear, int multiprocessors);

// The same for products of 5 (int8) or 9 (int4) to max_tiled_tokens tokens. tiled_takes() also looks at tokens and
// addresses.
bool tiled_supports(fvlm_dtype dtype, const PackedWeight& shape, bool is_gated);
bool tiled_takes(fvlm_dtype dtype, const PackedWeight& packed, const SkinnyLinear& linear);
void linear_tiled(cudaStream_t stream, const PackedWeight& packed, const SkinnyLinear& linear, int multiprocessors);

} // namespace fvlm::plugins
