// launches.h: the kernels of quantizer-cuda, by their host side.
#pragma once

#include "common/packed_weight.h"

#include <fvlm/cuda.hpp>

#include <cstdint>

namespace fvlm::plugins {

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
