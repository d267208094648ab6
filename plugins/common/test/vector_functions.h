// vector_functions.h: the functions of vector_math.h over arrays, for its test.
#pragma once

#include "common/level_table.h"

#include <cstdint>

namespace fvlm::plugins {

// Each reads `count` numbers, which has to be a multiple of 16.
struct VectorFunctions {
  using Function = void (*)(const float* x, int64_t count, float* y);
  Function exp2, exp, sigmoid, tanh, normal_cdf;
  Function sine, cosine; // of x quarter turns
};

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(VectorFunctions, vector_functions)
