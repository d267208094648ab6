// cuda_wgmma_wide.cuh: wgmma of 64 x 192 x 16 and 64 x 200 x 16 with both operands MN-major, as weight gradients (d_y^T
// x) need it. For sm_90a.
#pragma once

#include "common/cuda_hopper.cuh"

namespace fvlm::plugins::hopper {

#define FVLM_96                                                                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "          \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "          \
  "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "          \
  "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "          \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FVLM_100 FVLM_96 ", %96, %97, %98, %99"
#define FVLM_FOUR(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define FVLM_SIXTEEN(i) FVLM_FOUR(i), FVLM_FOUR(i + 4), FVLM_FOUR(i + 8), FVLM_FOUR(i + 12)
#define FVLM_OUTPUTS_192                                                                                               \
  FVLM_SIXTEEN(0), FVLM_SIXTEEN(16), FVLM_SIXTEEN(32), FVLM_SIXTEEN(48), FVLM_SIXTEEN(64), FVLM_SIXTEEN(80)
#define FVLM_WGMMA(columns, type, results, left_at, right_at, adds_at, ...)                                            \
  asm volatile("{\n"                                                                                                   \
               ".reg .pred add;\n"                                                                                     \
               "setp.ne.b32 add, " adds_at ", 0;\n"                                                                    \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" results "}, " left_at         \
               ", " right_at ", add, 1, 1, 1, 1;\n"                                                                    \
               "}"                                                                                                     \
               : __VA_ARGS__                                                                                           \
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)))
#define FVLM_WGMMA_192(type) FVLM_WGMMA("192", type, FVLM_96, "%96", "%97", "%98", FVLM_OUTPUTS_192)
#define FVLM_WGMMA_200(type) FVLM_WGMMA("200", type, FVLM_100, "%100", "%101", "%102", FVLM_OUTPUTS_192, FVLM_FOUR(96))

// sum = a^T b, or sum += a^T b: like wgmma(), but the boxes of A too hold 64 columns of a row. Of 200 columns the last
// eight are the first of a fourth box.
template <class T, int columns, int size>
__device__ void wgmma_mn_major(float (&sum)[size], std::uint64_t a, std::uint64_t b, bool adds) {
  static_assert((columns == 192 || columns == 200) && size >= columns / 2);
  if constexpr (std::is_same_v<T, BFloat16> && columns == 192)
    FVLM_WGMMA_192("bf16");
  else if constexpr (std::is_same_v<T, BFloat16>)
    FVLM_WGMMA_200("bf16");
  else if constexpr (columns == 192)
    FVLM_WGMMA_192("f16");
  else
    FVLM_WGMMA_200("f16");
}

#undef FVLM_WGMMA_200
#undef FVLM_WGMMA_192
#undef FVLM_WGMMA
#undef FVLM_OUTPUTS_192
#undef FVLM_SIXTEEN
#undef FVLM_FOUR
#undef FVLM_100
#undef FVLM_96

} // namespace fvlm::plugins::hopper
