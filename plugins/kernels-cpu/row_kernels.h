// row_kernels.h: what the plugin's C++ side asks of the code that is compiled for each instruction set. Every function
// does the rows [first, last); `bfloat` says that elements are bfloat16 and not float32.
#pragma once

#include "common/level_table.h"

#include <cstdint>

namespace fvlm::plugins {

// A [rows, width] tensor whose rows are contiguous; data may be NULL where a member is optional.
struct Rows {
  void* data = nullptr;
  int64_t row = 0;
};

// Column sums over the rows of a call are kept apart for each range of rows: float32 [width], overwritten, or NULL.
struct NormProblem {
  bool bfloat, centered; // centered: layernorm, else rmsnorm
  int64_t width;
  float epsilon;
  Rows x, residual, sum, y, rest, sum_rest;
  const void *weight, *bias;
  float *inverse, *mean; // [rows]; in a forward NULL: not saved
  Rows s, d_y, d_sum, d_x;
};

struct SwigluProblem {
  bool bfloat;
  int64_t width;
  Rows gate, up, y, d_y, d_gate, d_up;
};

struct GeluProblem {
  bool bfloat;
  int64_t width;
  const void* bias;
  Rows x, y, d_y, d_x;
};

struct LayerscaleProblem {
  bool bfloat;
  int64_t width;
  const void* scale;
  Rows x, residual, y, d_y, d_x;
};

struct RopeProblem {
  bool bfloat, inverse;
  int64_t heads, head_dim, rotary_dim;
  const double* quarter_turns; // [rotary_dim / 2]: an angle per position, in quarters of a turn
  const int32_t* positions;
  int64_t positions_row;
  Rows x, out;
  int64_t x_head, out_head; // strides of heads
};

// A parameter's gradient from its partial sums.
struct SumProblem {
  bool bfloat, accumulate;
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
  void (*sum_parts)(const SumProblem&);
};

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(RowKernels, row_kernels)
