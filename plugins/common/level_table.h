// level_table.h: dispatch tables of functions whose sources are compiled once per instruction set (levels.cmake).
#pragma once

#include "common/cpu_level.h"

// FVLM_LEVEL_TABLE(Kernels, kernels) declares fvlm::plugins::<level>::kernels() for every level, and
// fvlm::plugins::kernels(CpuLevel), which returns the one for a level.
#if defined(__x86_64__)
#define FVLM_LEVEL_TABLE(Type, function)                                                                               \
  namespace fvlm::plugins {                                                                                            \
  namespace baseline {                                                                                                 \
  const Type& function();                                                                                              \
  }                                                                                                                    \
  namespace avx2 {                                                                                                     \
  const Type& function();                                                                                              \
  }                                                                                                                    \
  namespace avx512 {                                                                                                   \
  const Type& function();                                                                                              \
  }                                                                                                                    \
  inline const Type& function(CpuLevel level) {                                                                        \
    if (level == CpuLevel::avx512) return avx512::function();                                                          \
    return level == CpuLevel::avx2 ? avx2::function() : baseline::function();                                          \
  }                                                                                                                    \
  }
#else
#define FVLM_LEVEL_TABLE(Type, function)                                                                               \
  namespace fvlm::plugins {                                                                                            \
  namespace baseline {                                                                                                 \
  const Type& function();                                                                                              \
  }                                                                                                                    \
  inline const Type& function(CpuLevel) {                                                                              \
    return baseline::function();                                                                                       \
  }                                                                                                                    \
  }
#endif
