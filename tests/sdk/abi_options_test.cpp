// abi_options_test.cpp: option bits and a field that were appended to the ABI of version 1.0, beside
// abi_layout_test.cpp.
#include <fvlm/kernels.h>

#include <cstddef>

static_assert(FVLM_QUICK_GELU == 128, "the value of FVLM_QUICK_GELU changed");
static_assert(FVLM_GELU_TANH == 256, "the value of FVLM_GELU_TANH changed");
static_assert(FVLM_PER_HEAD == 512, "the value of FVLM_PER_HEAD changed");
static_assert(offsetof(fvlm_requirements, prepare_workspace) == 184, "the place of prepare_workspace changed");
