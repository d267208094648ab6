// gemm_swiglu.h: matrix products of a gated MLP for Hopper in bfloat16 or e4m3: the one of gate and up with SwiGLU, and
// the input gradient of the one behind it with SwiGLU's derivative. What SwiGLU reads and writes moves while the tensor
// cores multiply.
#pragma once

#include "common/cublaslt.h"
#include "common/cuda_rows.h"

namespace fvlm::plugins {

// inner: the summed dimension; width: columns of y, or of x in y = x weight^T.
struct SwigluGemmShape {
  std::int64_t rows, inner, width;
};

bool swiglu_gemm_supports(const SwigluGemmShape& shape);

// Of operands in e4m3: what rows of x or d_y, and of the weight, are multiplied by. NULL: operands are bfloat16.
struct SwigluGemmScales {
  const float *of_rows = nullptr, *of_columns = nullptr;
};

// gate_up = x weight^T, y = silu(gate) * up of its rounded halves. x [rows, inner], weight [2 width, inner], gate_up
// [rows, 2 width], y [rows, width].
struct SwigluGemmForward {
  Matrix x, weight, gate_up, y;
  SwigluGemmScales scales{};
};
void swiglu_gemm_forward(const Device& device, const SwigluGemmShape& shape, const SwigluGemmForward& operands);

// The gradient of gate_up where d_y weight is that of y. d_y [rows, inner], weight [inner, width], or with scales
// [width, inner], gate_up and d_gate_up [rows, 2 width], which may be the same memory. It also gives y [rows, width]
// where that has memory.
struct SwigluGemmBackward {
  Matrix d_y, weight, gate_up, d_gate_up;
  Matrix y{};
  SwigluGemmScales scales{};
};
void swiglu_gemm_backward(const Device& device, const SwigluGemmShape& shape, const SwigluGemmBackward& operands);

} // namespace fvlm::plugins
