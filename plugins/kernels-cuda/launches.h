// launches.h: what the plugin's face asks of its kernels: pointers and strides that were checked, and where to run.
#pragma once

#include "common/cuda_rows.h"

namespace fvlm::plugins {

struct NormForward {
  Rows x, residual, y, sum;
  Rows compensation, sum_compensation; // data NULL: no rest came; none is kept
  const void *weight, *bias;           // bias NULL: rmsnorm
  float *rstd, *mean;                  // NULL: no backward follows
  float epsilon;
};

struct NormBackward {
  Rows d_y, d_sum, s, d_x;
  const void* weight;
  const float *rstd, *mean; // mean NULL: rmsnorm
};

struct Swiglu {
  Rows gate, up, y, d_y, d_gate, d_up;
};

struct BiasGelu {
  Rows x, y, d_y, d_x;
  const void* bias;
};

struct Layerscale {
  Rows x, residual, y, d_y, d_x;
  const void* scale;
};

// [matrices, rows, columns]: how many elements lie from matrix to matrix, and from row to row.
struct Matrices {
  void* data;
  std::int64_t matrix, row;
};

struct FoldRowScale {
  std::int64_t matrices, width, inner;
  Rows scale, bias; // [matrices, width], as all that has no columns
  Matrices weight;
  Matrices scaled_weight; // backward: what came to it, in float
  Rows scaled_bias;
  Matrices d_weight; // data NULL, here and in what came: not wanted
  Rows d_scale, d_bias;
  fvlm_dtype dtype, gradient;
  bool accumulate, vectorized;
};

struct Rope {
  Rows x, out;
  std::int64_t x_head, out_head; // elements from head to head
  const std::int32_t* positions;
  std::int64_t positions_stride;
  std::int64_t rows;
  int heads, head_dim, rotary_dim;
  double log2_theta;
  bool inverse;
};

// Whether a norm's blocks meet in clusters: the device has to have them, and the code that was made for it.
bool norms_use_clusters(fvlm_device device);
// How many parts the sums of a norm's parameters may have.
std::int64_t max_norm_parts(std::int64_t rows, const Device& device);

void norm_forward(const Device& device, const Shape& shape, const NormForward& norm);
void norm_backward(const Device& device, const Shape& shape, const NormBackward& norm, const GradientSums& sums);
// A way of its own for few rows, which leaves the sums of d_x to others. False where this is no case for it.
bool norm_backward_few_rows(const Device& device, const Shape& shape, const NormBackward& norm,
                            const GradientSums& sums);
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
