// linear_plan.h: which kernels compute a linear layer's products.
#pragma once
#include "linear_shapes.h"
#include "matmul.h"

#include <tuple>

namespace fvlm::plugins {

struct LinearPlan {
  Matmul forward, input, weight;
  Matmul fp8_weight;               // with both gradients
  Matmul fp8_forward, fp8_input;   // of e4m3 (linear_fp8.h), in place of forward and input
  Matmul gelu_forward, gelu_input; // with cuBLASLt's epilogues of the approximation with tanh
  bool gelu_is_epilogue = false, gelu_derivative_is_epilogue = false;
  bool adds_bias = false; // whether the forward's epilogue adds the bias
  // Whether skinny GEMMs (gemm_skinny.h) run, which also compute everything around the product.
  bool forward_is_skinny = false, input_is_skinny = false;
  // Whether fused GEMMs (gemm_gelu.h) run: the plain linear, with GELU, with its derivative; and the custom weight
  // gradient (gemm_weight_gradient.h), without and with the bias gradient.
  bool forward_is_fused = false, input_is_fused = false, gelu_is_fused = false, gelu_derivative_is_fused = false;
  bool weight_is_custom = false, weight_and_bias_are_custom = false;
};

// What a plan depends on.
using PlanKey = std::tuple<int64_t, int64_t, int64_t, int64_t, int, int, std::uint32_t, bool>;

inline PlanKey plan_key_of(const fvlm_kernels_query& q, bool deterministic) {
  const std::uint32_t forms = is_exact(q) ? 0 : gelu_forms | FVLM_WITH_GELU;
  return {q.rows,
          q.width,
          q.inner,
          pairs_of(q),
          q.dtype.code * 256 + q.dtype.bits,
          has_backward(q) ? q.gradient_dtype.bits : 0,
          (is_fp8(q) ? q.options & FVLM_BOTH_GRADIENTS : 0) |
              (q.options & (FVLM_WITH_BACKWARD | FVLM_WITH_BIAS | FVLM_WITH_RESIDUAL | FVLM_WITH_FP8 | forms)),
          deterministic};
}

} // namespace fvlm::plugins
