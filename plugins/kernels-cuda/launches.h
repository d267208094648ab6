// launches.h: the arguments of this plugin's kernels, with checked pointers and strides, and their launch functions.
#pragma once

#include "common/cuda_rows.h"
#include "common/gelu_form.h"

namespace fvlm::plugins {

struct NormForward {
  Rows x, residual, y, sum;
  Rows compensation, sum_compensation; // data NULL: no compensation is read; none is written
  const void *weight, *bias;           // bias NULL: rmsnorm
  float *rstd, *mean;                  // NULL: no backward follows
  float epsilon;
  int heads; // norms in a row of the operands
  Rows gate; // of a gated norm
};

struct NormBackward {
  Rows d_y, d_sum, s, d_x;
  const void* weight;
  const float *rstd, *mean; // mean NULL: rmsnorm
  int heads;                // norms in a row of the operands
  Rows gate, d_gate;        // of a gated norm
};

struct Swiglu {
  Rows gate, up, y, d_y, d_gate, d_up;
  bool is_geglu;
  GeluForm form; // of GeGLU's gate
};

struct BiasGelu {
  Rows x, y, d_y, d_x;
  const void* bias;
  GeluForm form;
};

struct Layerscale {
  Rows x, residual, y, d_y, d_x;
  const void* scale;
};

// [matrices, rows, columns]; strides of matrices and rows in elements.
struct Matrices {
  void* data;
  std::int64_t matrix, row;
};

struct FoldRowScale {
  std::int64_t matrices, width, inner;
  Rows scale, bias; // [matrices, width], like all operands without columns
  Matrices weight;
  Matrices scaled_weight; // in backward its gradient, in float32
  Rows scaled_bias;
  Matrices d_weight; // data NULL, here and in the gradients above: not required
  Rows d_scale, d_bias;
  fvlm_dtype dtype, gradient;
  bool accumulate, vectorized;
};

struct Rope {
  Rows x, out;
  std::int64_t x_head, out_head; // head strides in elements
  const std::int32_t* positions;
  std::int64_t positions_stride;
  std::int64_t rows;
  int heads, head_dim, rotary_dim;
  double log2_theta;
  const double* frequencies; // in place of theta's; may be null
  bool inverse;
};

// Whether the norms' blocks form clusters. Needs a device with clusters and code compiled for it.
bool norms_use_clusters(fvlm_device device);
// The most parts that the gradient sums of a norm may have.
std::int64_t max_norm_parts(std::int64_t rows, const Device& device);

void norm_forward(const Device& device, const Shape& shape, const NormForward& norm);
void norm_backward(const Device& device, const Shape& shape, const NormBackward& norm, const GradientSums& sums);
// A separate kernel for few rows, which does not compute column sums of d_x. Returns false if it does not apply.
bool norm_backward_few_rows(const Device& device, const Shape& shape, const NormBackward& norm,
                            const GradientSums& sums);
// rmsnorms of at most this many numbers, times silu of a gate.
inline constexpr int max_gated_head = 256;
void gated_norm_forward(const Device& device, const Shape& shape, const NormForward& norm);
void gated_norm_backward(const Device& device, const Shape& shape, const NormBackward& norm, const GradientSums& sums);
void swiglu_forward(const Device& device, const Shape& shape, const Swiglu& swiglu);
void swiglu_backward(const Device& device, const Shape& shape, const Swiglu& swiglu);
void bias_gelu_forward(const Device& device, const Shape& shape, const BiasGelu& gelu);
void bias_gelu_backward(const Device& device, const Shape& shape, const BiasGelu& gelu, const GradientSums& sums);
void layerscale_forward(const Device& device, const Shape& shape, const Layerscale& layerscale);
void layerscale_backward(const Device& device, const Shape& shape, const Layerscale& layerscale,
                         const GradientSums& sums);
void fold_row_scale_forward(const Device& device, const FoldRowScale& scaled);
void fold_row_scale_backward(const Device& device, const FoldRowScale& scaled);
void rope(const Device& device, fvlm_dtype dtype, bool vectorized, const Rope& rope);

} // namespace fvlm::plugins
