// abi_options_test.cpp: option bits and fields that were appended to the ABI of version 1.0, beside
// abi_layout_test.cpp.
#include <fvlm/attention.h>
#include <fvlm/kernels.h>

#include <cstddef>

static_assert(FVLM_QUICK_GELU == 128, "the value of FVLM_QUICK_GELU changed");
static_assert(FVLM_GELU_TANH == 256, "the value of FVLM_GELU_TANH changed");
static_assert(FVLM_PER_HEAD == 512, "the value of FVLM_PER_HEAD changed");
static_assert(offsetof(fvlm_requirements, prepare_workspace) == 184, "the place of prepare_workspace changed");
static_assert(offsetof(fvlm_requirements, deterministic_workspace) == 192,
              "the place of deterministic_workspace changed");
static_assert(FVLM_WITH_NORM == 1024, "the value of FVLM_WITH_NORM changed");
static_assert(FVLM_WITH_SWIGLU == 2048, "the value of FVLM_WITH_SWIGLU changed");
static_assert(offsetof(fvlm_linear_forward, norm_weight) == 72, "the place of norm_weight changed");
static_assert(FVLM_ATTENTION_APPENDS == 1, "the value of FVLM_ATTENTION_APPENDS changed");
static_assert(FVLM_ATTENTION_PARTIAL == 2, "the value of FVLM_ATTENTION_PARTIAL changed");
static_assert(FVLM_ATTENTION_PARTIAL_WINDOWS == 8, "the value of FVLM_ATTENTION_PARTIAL_WINDOWS changed");
static_assert(FVLM_STRIDED_WEIGHT == 4096, "the value of FVLM_STRIDED_WEIGHT changed");
static_assert(FVLM_BOTH_GRADIENTS == 8192, "the value of FVLM_BOTH_GRADIENTS changed");
static_assert(FVLM_WITH_OUTPUT == 16384, "the value of FVLM_WITH_OUTPUT changed");
static_assert(FVLM_SWIGLU_INPUT == 65536, "the value of FVLM_SWIGLU_INPUT changed");
static_assert(FVLM_BFLOAT16_WEIGHT == 131072, "the value of FVLM_BFLOAT16_WEIGHT changed");
static_assert(FVLM_WITH_GATE == 1048576, "the value of FVLM_WITH_GATE changed");
static_assert(offsetof(fvlm_swiglu_backward, y) == 48, "the place of y changed");
static_assert(offsetof(fvlm_linear_weight_gradient, weight) == 40, "the place of weight changed");
static_assert(offsetof(fvlm_linear_weight_gradient, d_x) == 48, "the place of d_x changed");
static_assert(offsetof(fvlm_linear_input_gradient, x) == 56, "the place of x changed");
