// cuda_hopper.cuh: what Hopper's kernels are made of: barriers in shared memory, copies of boxes of a matrix by the
// copy engine, and products by four warps together. For sm_90a.
//
// A box is 64 elements of 16 bits wide. Its rows are 128 bytes, of which the 16 bytes at p lie at p ^ row % 8: boxes
// begin at multiples of 1024.
#pragma once

#include "common/cuda_packs.cuh"

#include <cuda.h>

namespace fvlm::plugins::hopper {

constexpr int box_width = 64, box_row_bytes = 128;
constexpr int warpgroup_warps = 4, warpgroup_threads = warpgroup_warps * warp_size; // of warps that multiply together

__device__ inline unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Until all threads of the cluster are here.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n"
               "barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// What ordinary instructions have read and written of shared memory comes before what the copy engine then does there.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A turn of it ends when `arrivals` have come and all bytes that were announced. Turns are told apart by their parity.
class Barrier {
 public:
  __device__ void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
  }
  // For the copy engine to see that it has begun.
  __device__ static void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  // At the same barrier of that block of the cluster, which is not told of what ordinary instructions wrote.
  __device__ void arrive_remote(unsigned rank) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(shared_address(this)),
                 "r"(rank)
                 : "memory");
  }
  // Arrives, and announces bytes that copies will bring.
  __device__ void arrive_and_expect_tx(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  // Until the turn of that parity has ended.
  __device__ void wait(unsigned parity) {
    while (!try_wait(parity)) {
    }
  }

 private:
  __device__ bool try_wait(unsigned parity) {
    std::uint32_t ended;
    asm volatile("{\n"
                 ".reg .pred ended;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, ended;\n"
                 "}"
                 : "=r"(ended)
                 : "r"(shared_address(this)), "r"(parity)
                 : "memory");
    return ended != 0;
  }

  std::uint64_t state_;
};

// Copies of a box whose first element is at that column and row; what lies outside the matrix reads as 0 and is not
// written. For one thread.
__device__ inline void tma_load(void* to, const CUtensorMap& matrix, int column, int row, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(&matrix), "r"(column), "r"(row), "r"(shared_address(&barrier))
      : "memory");
}
// The same where the matrix has planes of rows.
__device__ inline void tma_load(void* to, const CUtensorMap& matrix, int column, int row, int plane, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared_address(to)),
      "l"(&matrix), "r"(column), "r"(row), "r"(plane), "r"(shared_address(&barrier))
      : "memory");
}
// A box to that place of each block of the cluster whose bit is set, whose barrier there hears of its bytes.
__device__ inline void tma_load(void* to, const CUtensorMap& matrix, int column, int row, Barrier& barrier,
                                unsigned blocks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
               "l"(&matrix), "r"(column), "r"(row), "r"(shared_address(&barrier)),
               "h"(static_cast<std::uint16_t>(blocks))
               : "memory");
}
// Brings it to the L2.
__device__ inline void tma_prefetch(const CUtensorMap& matrix, int column, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(&matrix), "r"(column), "r"(row));
}
__device__ inline void tma_store(const CUtensorMap& matrix, int column, int row, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&matrix),
               "r"(column), "r"(row), "r"(shared_address(from))
               : "memory");
}
// The same, added to what is there: float32.
__device__ inline void tma_reduce_add(const CUtensorMap& matrix, int column, int row, const void* from) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&matrix),
               "r"(column), "r"(row), "r"(shared_address(from))
               : "memory");
}
__device__ inline void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the memory of all groups of stores but the last `groups` may be used again.
template <int groups>
__device__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
}

// Four squares of 8 x 8, thread t giving the address of row t % 8 of square t / 8 and having columns 2 (t % 4) and the
// next, of row t / 4.
struct Matrix8x8x4 {
  std::uint32_t at[4];

  __device__ void load(std::uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(at[0]), "=r"(at[1]), "=r"(at[2]), "=r"(at[3])
                 : "r"(from)
                 : "memory");
  }
  __device__ void store(std::uint32_t to) const {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(at[0]), "r"(at[1]),
                 "r"(at[2]), "r"(at[3])
                 : "memory");
  }
};

// How many registers a thread of the group has from here on, of those that the kernel was started with or that others
// have given away.
template <int count>
__device__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// Where an operand lies, for multiply(): in boxes of which each row is a row of a left operand or a column of a right
// one, or each row holds 64 columns of one row of a right one, the next 64 columns so many bytes behind.
__device__ inline std::uint64_t matrix_descriptor(const void* boxes, unsigned stride_bytes = 16) {
  constexpr std::uint64_t eight_rows = 8 * box_row_bytes, swizzled = 1;
  return (shared_address(boxes) & 0x3ffff) >> 4 | static_cast<std::uint64_t>(stride_bytes >> 4) << 16 |
         (eight_rows >> 4) << 32 | swizzled << 62;
}

// The same that many bytes behind it.
__device__ inline std::uint64_t advance_descriptor(std::uint64_t descriptor, unsigned bytes) {
  return descriptor + (bytes >> 4);
}

__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int groups>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}

// Behind wait_for_products(): what reads these sums comes after it. The compiler does not know that they were not
// there.
template <int size>
__device__ void fence_accumulators(float (&sum)[size]) {
#pragma unroll
  for (float& each : sum) asm volatile("" : "+f"(each));
}

// A product of 64 x `columns` x 16 that the four warps of a group make. Warp w has rows 16 w to 16 w + 15: thread t of
// it has, of each 8 columns, columns 2 (t % 4) and the next, of rows t / 4 and t / 4 + 8.
template <int columns>
using Accumulator = float[columns / 2];
using Accumulator128 = Accumulator<128>;

#define FVLM_FOUR(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define FVLM_SIXTEEN(i) FVLM_FOUR(i), FVLM_FOUR(i + 4), FVLM_FOUR(i + 8), FVLM_FOUR(i + 12)
#define FVLM_OUTPUTS_16 FVLM_FOUR(0), FVLM_FOUR(4)
#define FVLM_OUTPUTS_32 FVLM_SIXTEEN(0)
#define FVLM_OUTPUTS_64 FVLM_SIXTEEN(0), FVLM_SIXTEEN(16)
#define FVLM_OUTPUTS_128 FVLM_OUTPUTS_64, FVLM_SIXTEEN(32), FVLM_SIXTEEN(48)
#define FVLM_OUTPUTS_192 FVLM_OUTPUTS_128, FVLM_SIXTEEN(64), FVLM_SIXTEEN(80)
#define FVLM_OUTPUTS_136 FVLM_OUTPUTS_128, FVLM_FOUR(64)
#define FVLM_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FVLM_REGISTERS_32 FVLM_REGISTERS_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FVLM_REGISTERS_64                                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "     \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define FVLM_REGISTERS_128                                                                                             \
  FVLM_REGISTERS_64                                                                                                    \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, "   \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FVLM_REGISTERS_136 FVLM_REGISTERS_128 ", %64, %65, %66, %67"
#define FVLM_REGISTERS_192                                                                                             \
  FVLM_REGISTERS_128                                                                                                   \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "   \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

// The operands' and the predicate's names follow the sums'; `turned`: whether they are read by rows.
#define FVLM_WGMMA(columns, type, operands, adds_name, a_major, ...)                                                   \
  asm volatile("{\n"                                                                                                   \
               ".reg .pred add;\n"                                                                                     \
               "setp.ne.b32 add, " adds_name ", 0;\n"                                                                  \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" FVLM_REGISTERS_##columns     \
               "}, " operands ", add, 1, 1, " a_major ";\n"                                                            \
               "}"                                                                                                     \
               : FVLM_OUTPUTS_##columns                                                                                \
               : __VA_ARGS__, "l"(b), "r"(static_cast<int>(adds)))
#define FVLM_WGMMA_ANY(columns, operands, adds_name, a_major, ...)                                                     \
  if constexpr (std::is_same_v<T, BFloat16> && b_mn_major)                                                             \
    FVLM_WGMMA(columns, "bf16", operands, adds_name, a_major "1", __VA_ARGS__);                                        \
  else if constexpr (std::is_same_v<T, BFloat16>)                                                                      \
    FVLM_WGMMA(columns, "bf16", operands, adds_name, a_major "0", __VA_ARGS__);                                        \
  else if constexpr (b_mn_major)                                                                                       \
    FVLM_WGMMA(columns, "f16", operands, adds_name, a_major "1", __VA_ARGS__);                                         \
  else                                                                                                                 \
    FVLM_WGMMA(columns, "f16", operands, adds_name, a_major "0", __VA_ARGS__)

// sum = left right, or is added to. It runs in the background until wait_for_products(). left_by_rows: each row of its
// boxes holds 64 rows of one column of the left operand.
template <class T, bool b_mn_major, bool a_mn_major = false, int size>
__device__ void wgmma(float (&sum)[size], std::uint64_t a, std::uint64_t b, bool adds) {
  static_assert(size == 8 || size == 16 || size == 32 || size == 64 || size == 68 || size == 96);
  static_assert(!a_mn_major || size == 8 || size == 32);
  if constexpr (a_mn_major && size == 8) {
    FVLM_WGMMA_ANY(16, "%8, %9", "%10", "1, ", "l"(a));
  } else if constexpr (a_mn_major) {
    FVLM_WGMMA_ANY(64, "%32, %33", "%34", "1, ", "l"(a));
  } else if constexpr (size == 8) {
    FVLM_WGMMA_ANY(16, "%8, %9", "%10", "0, ", "l"(a));
  } else if constexpr (size == 16) {
    FVLM_WGMMA_ANY(32, "%16, %17", "%18", "0, ", "l"(a));
  } else if constexpr (size == 32) {
    FVLM_WGMMA_ANY(64, "%32, %33", "%34", "0, ", "l"(a));
  } else if constexpr (size == 64) {
    FVLM_WGMMA_ANY(128, "%64, %65", "%66", "0, ", "l"(a));
  } else if constexpr (size == 68) {
    FVLM_WGMMA_ANY(136, "%68, %69", "%70", "0, ", "l"(a));
  } else {
    FVLM_WGMMA_ANY(192, "%96, %97", "%98", "0, ", "l"(a));
  }
}

// The same with the left operand in registers, of the rows that a thread has of a product: columns 2 (t % 4) and the
// next of both rows, and then those 8 further on. They have to stay as they are until wait_for_products().
template <class T, bool b_mn_major, int size>
__device__ void wgmma(float (&sum)[size], const std::uint32_t (&a)[4], std::uint64_t b, bool adds) {
  static_assert(size == 8 || size == 16 || size == 32);
  if constexpr (size == 8) {
    FVLM_WGMMA_ANY(16, "{%8, %9, %10, %11}, %12", "%13", "", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
  } else if constexpr (size == 16) {
    FVLM_WGMMA_ANY(32, "{%16, %17, %18, %19}, %20", "%21", "", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
  } else {
    FVLM_WGMMA_ANY(64, "{%32, %33, %34, %35}, %36", "%37", "", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
  }
}

#undef FVLM_WGMMA_ANY
#undef FVLM_WGMMA
#undef FVLM_REGISTERS_192
#undef FVLM_REGISTERS_136
#undef FVLM_REGISTERS_128
#undef FVLM_REGISTERS_64
#undef FVLM_REGISTERS_32
#undef FVLM_REGISTERS_16
#undef FVLM_OUTPUTS_192
#undef FVLM_OUTPUTS_136
#undef FVLM_OUTPUTS_128
#undef FVLM_OUTPUTS_64
#undef FVLM_OUTPUTS_32
#undef FVLM_OUTPUTS_16
#undef FVLM_SIXTEEN
#undef FVLM_FOUR

} // namespace fvlm::plugins::hopper
