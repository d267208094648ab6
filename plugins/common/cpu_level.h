// cpu_level.h: which vector instructions this machine has, and a loop compiled once for each of them.
//
// Write the loop as `template <class ...> struct MyKernel { struct Arguments {...}; FVLM_LOOP static void run(const
// Arguments&); }` in plain scalar code that the compiler turns into vectors, and take for_level<MyKernel>(level) once.
#pragma once

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#define FVLM_TARGET_AVX2 __attribute__((target("avx2,fma,f16c,bmi2")))
#if defined(__clang__)
#define FVLM_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi2")))
#else
#define FVLM_TARGET_AVX512                                                                                             \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi2,prefer-vector-width=512")))
#endif
#else
#define FVLM_TARGET_AVX2
#define FVLM_TARGET_AVX512
#endif
#define FVLM_LOOP inline __attribute__((always_inline))

namespace fvlm::plugins {

enum class CpuLevel { baseline, avx2, avx512 };

// The highest level that this machine supports. FVLM_CPU_LEVEL=avx2 or =baseline limits it, for comparisons and tests.
inline CpuLevel cpu_level() {
  CpuLevel limit = CpuLevel::avx512;
  if (const char* requested = std::getenv("FVLM_CPU_LEVEL")) {
    if (std::strcmp(requested, "avx2") == 0) limit = CpuLevel::avx2;
    if (std::strcmp(requested, "baseline") == 0) return CpuLevel::baseline;
  }
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (limit == CpuLevel::avx512 && avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return CpuLevel::avx512;
  }
  if (avx2) return CpuLevel::avx2;
#endif
  return CpuLevel::baseline;
}

// Whether a machine of this level has products of bfloat16, too (avx512_bf16). FVLM_CPU_LEVEL=avx512 leaves them out.
inline bool has_bfloat16_products(CpuLevel level) {
#if defined(__x86_64__)
  const char* requested = std::getenv("FVLM_CPU_LEVEL");
  const bool is_limited = requested && std::strcmp(requested, "avx512") == 0;
  return level == CpuLevel::avx512 && !is_limited && __builtin_cpu_supports("avx512bf16");
#else
  (void)level;
  return false;
#endif
}

inline const char* name_of(CpuLevel level) {
  return level == CpuLevel::avx512 ? "AVX-512" : level == CpuLevel::avx2 ? "AVX2" : "baseline";
}

template <class Kernel>
using KernelFunction = void (*)(const typename Kernel::Arguments&);

template <class Kernel>
void run_baseline(const typename Kernel::Arguments& arguments) {
  Kernel::run(arguments);
}
template <class Kernel>
FVLM_TARGET_AVX2 void run_avx2(const typename Kernel::Arguments& arguments) {
  Kernel::run(arguments);
}
template <class Kernel>
FVLM_TARGET_AVX512 void run_avx512(const typename Kernel::Arguments& arguments) {
  Kernel::run(arguments);
}

template <class Kernel>
KernelFunction<Kernel> for_level(CpuLevel level) {
  switch (level) {
  case CpuLevel::avx512:
    return run_avx512<Kernel>;
  case CpuLevel::avx2:
    return run_avx2<Kernel>;
  case CpuLevel::baseline:
    break;
  }
  return run_baseline<Kernel>;
}

} // namespace fvlm::plugins
