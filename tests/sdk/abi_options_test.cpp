// abi_options_test.cpp: option bits that were appended to the ABI of version 1.0, beside abi_layout_test.cpp.
#include <fvlm/kernels.h>

static_assert(FVLM_QUICK_GELU == 128, "the value of FVLM_QUICK_GELU changed");
static_assert(FVLM_GELU_TANH == 256, "the value of FVLM_GELU_TANH changed");
