// linear_fp8.h: linears whose operands are rounded to e4m3 by the call itself (FVLM_WITH_FP8), and multiplied by
// cuBLASLt with a scale for each row and each column, on Hopper.
#pragma once
#include "fp8_rounding.h"
#include "fp8_transpose.h"
#include "linear_plan.h"
#include "narrow_gradients.h"

namespace fvlm::plugins {

constexpr int64_t fp8_unit = 16; // sides of matrices are multiples of it

// Whether a linear with FVLM_WITH_FP8 is one that these products compute.
sdk::Support fits_fp8(const fvlm_kernels_query& query, bool is_hopper);

// The same of its sizes alone.
sdk::Support fits_fp8_sizes(const fvlm_kernels_query& query);

// Rounded operands: rows of x or of d_y, and those of the weight or of its transpose.
struct Fp8Scratch {
  Fp8Rows rows, weight;
  // With both gradients: x, what the weight gradient reads of d_y and x, and its scales.
  Fp8Rows x;
  std::uint8_t *turned_d_y, *turned_x;
  JoinedScales joined;
};
Fp8Scratch allocate_fp8(sdk::Workspace& workspace, const fvlm_kernels_query& query);

// Throws Failure(UNSUPPORTED) where cuBLASLt has no algorithm. It offers a single one for each of these products, so
// nothing is timed. [setup]
void plan_fp8(const CublasLt& library, const fvlm_kernels_query& query, std::size_t workspace, LinearPlan& plan);

// What is the same for both products.
struct Fp8Call {
  const CublasLt& library;
  const fvlm_call& call;
  Device device;
  const fvlm_kernels_query& query;
  const LinearPlan& plan;
  Fp8Scratch scratch;
  void* workspace; // of cuBLASLt
  std::size_t workspace_size;
};
// y = x weight^T + bias + residual
void fp8_forward(const Fp8Call& on, const Matrix& x, const Matrix& weight, const Matrix& y, void* bias,
                 const Matrix& residual);
// d_x = d_y weight
void fp8_input_gradient(const Fp8Call& on, const Matrix& d_y, const Matrix& weight, const Matrix& d_x);
// The same, unless d_x is NULL, and d_weight (+)= d_y^T x.
void fp8_both_gradients(const Fp8Call& on, const NarrowGradients& operands);

} // namespace fvlm::plugins
