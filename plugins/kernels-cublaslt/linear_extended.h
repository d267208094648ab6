// linear_extended.h: linears with a norm before them or SwiGLU behind them: in a step of generation, by the kernel for
// few rows; in training, by those of gemm_swiglu.h.
#pragma once

#include "gemm_few_rows.h"
#include "linear_fp8.h"
#include "narrow_gradients.h"

namespace fvlm::plugins {

// Of a query with FVLM_WITH_NORM, FVLM_WITH_SWIGLU or FVLM_SWIGLU_INPUT.
sdk::Support fits_extended(const fvlm_kernels_query& query, bool is_hopper);
void extended_forward(const Device& device, const fvlm_kernels_query& query, const fvlm_linear_forward& arguments,
                      const Fp8Scratch& fp8);
void extended_input_gradient(const Device& device, const fvlm_kernels_query& query,
                             const fvlm_linear_input_gradient& arguments, const Fp8Scratch& fp8);
Fp8Scratch allocate_extended(sdk::Workspace& workspace, const fvlm_kernels_query& query);

// Whether a forward without these options belongs to a step of generation. Its kernel is not measured against others,
// since most of its advantage is that it starts while the one before it is running.
bool is_decoding_product(const fvlm_kernels_query& query, bool is_hopper);

// What linear_weight_gradient() reads and writes where the query has FVLM_BOTH_GRADIENTS.
sdk::Support fits_both_gradients(const fvlm_kernels_query& query); // or has not
NarrowGradients both_gradients_of(const fvlm_kernels_query& query, const fvlm_linear_weight_gradient& arguments);
std::int64_t both_gradients_workspace(const fvlm_kernels_query& query, int multiprocessors);

} // namespace fvlm::plugins
