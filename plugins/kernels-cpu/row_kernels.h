// row_kernels.h: the interface of the code that is compiled once per instruction set. Every function processes the rows
// [first, last). Elements are bfloat16 where is_bfloat16 is set, else float32.
#pragma once

#include "common/level_table.h"

#include <cstdint>

namespace fvlm::plugins {

// A [rows, width] tensor whose rows are contiguous; data may be NULL where a member is optional.
struct Rows {
  void* data = nullptr;
  int64_t row = 0;
};

// rmsnorm and layernorm. Backward functions write the partial parameter gradients of their rows, float32 [width] each,
// or skip them where the pointer is NULL.
struct NormProblem {
  bool is_bfloat16, centered; // centered: layernorm, else rmsnorm
  int64_t width, heads;       // heads: norms in a row of the operands
  float epsilon;
  Rows x, residual, sum, y, compensation, sum_compensation;
  const void *weight, *bias;
  float *rstd, *mean; // [rows]; NULL in a forward: not saved
  Rows s, d_y, d_sum, d_x;
};

struct SwigluProblem {
  bool is_bfloat16;
  int64_t width;
  bool is_geglu;
  float linear, cubic; // of GeGLU's gate: x sigmoid(linear x + cubic x^3)
  Rows gate, up, y, d_y, d_gate, d_up;
};

struct GeluProblem {
  bool is_bfloat16;
  int64_t width;
  bool is_exact; // else x sigmoid(linear x + cubic x^3)
  float linear, cubic;
  const void* bias;
  Rows x, y, d_y, d_x;
};

struct LayerscaleProblem {
  bool is_bfloat16;
  int64_t width;
  const void* scale;
  Rows x, residual, y, d_y, d_x;
};

struct RopeProblem {
  bool is_bfloat16, inverse;
  int64_t heads, head_dim, rotary_dim;
  const double* inv_freq; // [rotary_dim / 2]: the inverse frequencies, in quarter turns per position
  const int32_t* positions;
  int64_t positions_row;
  Rows x, out;
  int64_t x_head, out_head; // strides of heads
};

// linear: y = x weight^T, with a bias and a residual where they are not NULL. Functions process features of y.
struct LinearProblem {
  bool is_bfloat16;
  bool has_bfloat16_weight; // and nothing else is bfloat16
  bool uses_pairs;          // has_bfloat16_products(): pairs of bfloat16 are multiplied as they are, else as float32
  int64_t rows, inner;
  Rows x;
  // Few rows of bfloat16: x in float32 (linear_widen), unless pairs are multiplied. Many rows: x of linear_pack.
  float* converted;
  const void *weight, *bias; // [width, inner] and [width]
  const GeluProblem* gelu;   // its form, of many rows alone; NULL: none
  Rows residual, y;
};

// float32 alone. d_x: [rows, inner], functions process vectors of its columns; d_weight and d_bias: [width, inner] and
// [width], functions process features.
struct LinearGradientProblem {
  int64_t rows, width, inner;
  Rows d_y, x, d_x;
  const float* weight;
  bool accumulate;
  float *d_weight, *d_bias; // d_bias: NULL: not required
};

// Sums the partial gradients of a parameter.
struct SumProblem {
  bool is_bfloat16, accumulate;
  int64_t width, parts;
  const float* part; // [parts, part_row]
  int64_t part_row;
  void* out; // [width]
};

struct RowKernels {
  void (*norm_forward)(const NormProblem&, int64_t first, int64_t last);
  void (*norm_backward)(const NormProblem&, int64_t first, int64_t last, float* d_weight, float* d_bias);
  void (*swiglu_forward)(const SwigluProblem&, int64_t first, int64_t last);
  void (*swiglu_backward)(const SwigluProblem&, int64_t first, int64_t last);
  void (*gelu_forward)(const GeluProblem&, int64_t first, int64_t last);
  void (*gelu_backward)(const GeluProblem&, int64_t first, int64_t last, float* d_bias);
  void (*layerscale_forward)(const LayerscaleProblem&, int64_t first, int64_t last);
  void (*layerscale_backward)(const LayerscaleProblem&, int64_t first, int64_t last, float* d_scale);
  void (*rope)(const RopeProblem&, int64_t first, int64_t last);
  void (*linear_few_rows)(const LinearProblem&, int64_t first, int64_t last);
  void (*linear_widen)(const LinearProblem&);
  // x as blocks of block_rows rows, functions process blocks: [inner][block_rows], or pairs of elements
  // [inner / 2][block_rows].
  void (*linear_pack)(const LinearProblem&, int64_t first, int64_t last);
  void (*linear_many_rows)(const LinearProblem&, int64_t first, int64_t last);
  void (*linear_input_gradient)(const LinearGradientProblem&, int64_t first, int64_t last);
  void (*linear_weight_gradient)(const LinearGradientProblem&, int64_t first, int64_t last);
  void (*sum_parts)(const SumProblem&);
  int64_t lanes, block_rows; // of a vector, and of a block of linear_pack
};

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(RowKernels, row_kernels)
