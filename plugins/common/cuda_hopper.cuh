// cuda_hopper.cuh: wrappers of Hopper's instructions: mbarriers in shared memory, TMA copies, wgmma (products by a
// warpgroup of four warps), setmaxnreg. For sm_90a.
//
// A TMA box is 64 elements of 16 bits wide, so its rows are 128 bytes. With the 128-byte swizzle the 16-byte chunk p of
// a row is stored at p ^ row % 8; boxes have to be aligned to 1024 bytes.
#pragma once

#include "common/cuda_packs.cuh"

#include <cuda.h>

namespace fvlm::plugins::hopper {

constexpr int box_width = 64, box_row_bytes = 128;
constexpr int warpgroup_warps = 4, warpgroup_threads = warpgroup_warps * warp_size; // of a warpgroup

__device__ inline unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Waits until all threads of the cluster have arrived.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n"
               "barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// Orders ordinary (generic proxy) accesses to shared memory before later accesses by TMA and wgmma (async proxy).
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// An mbarrier. A phase completes when `arrivals` threads have arrived and all announced bytes have been transferred;
// waiters distinguish phases by their parity.
class Barrier {
 public:
  __device__ void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
  }
  // Makes initialized barriers visible to TMA and to the cluster.
  __device__ static void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  // Arrives at the same barrier in another block of the cluster. Does not publish ordinary writes to that block.
  __device__ void arrive_remote(unsigned rank) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(shared_address(this)),
                 "r"(rank)
                 : "memory");
  }
  // Arrives and announces the bytes that TMA will transfer.
  __device__ void arrive_and_expect_tx(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  // Waits until the phase of that parity has completed.
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

// The stage of a pipeline that chunk number `count` goes through, and the parity of its barriers for that.
template <int stages>
struct PipelineStage {
  unsigned index, parity;

  __device__ explicit PipelineStage(unsigned count) : index(count % stages), parity(count / stages % 2) {}
};

// Starts a load of the box at (column, row). Elements outside of the matrix read as 0. Called by one thread.
__device__ inline void tma_load(void* to, const CUtensorMap& matrix, int column, int row, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(&matrix), "r"(column), "r"(row), "r"(shared_address(&barrier))
      : "memory");
}
// The same for a matrix of three dimensions.
__device__ inline void tma_load(void* to, const CUtensorMap& matrix, int column, int row, int plane, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared_address(to)),
      "l"(&matrix), "r"(column), "r"(row), "r"(plane), "r"(shared_address(&barrier))
      : "memory");
}
// The same for a matrix of four dimensions that is read once: the L2 keeps other data rather than this.
__device__ inline void tma_load_once(void* to, const CUtensorMap& matrix, int column, int row, int plane, int volume,
                                     Barrier& barrier) {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
               "{%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
               "l"(&matrix), "r"(column), "r"(row), "r"(plane), "r"(volume), "r"(shared_address(&barrier)), "l"(policy)
               : "memory");
}
// Multicast: the box is written to the same address in each block of the cluster whose bit is set in `blocks`, and each
// block's own barrier counts the bytes.
__device__ inline void tma_load(void* to, const CUtensorMap& matrix, int column, int row, Barrier& barrier,
                                unsigned blocks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
               "l"(&matrix), "r"(column), "r"(row), "r"(shared_address(&barrier)),
               "h"(static_cast<std::uint16_t>(blocks))
               : "memory");
}
// Prefetches a box into the L2.
__device__ inline void tma_prefetch(const CUtensorMap& matrix, int column, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(&matrix), "r"(column), "r"(row));
}
__device__ inline void tma_store(const CUtensorMap& matrix, int column, int row, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&matrix),
               "r"(column), "r"(row), "r"(shared_address(from))
               : "memory");
}
// Adds the box to global memory (float32) instead of overwriting it.
__device__ inline void tma_reduce_add(const CUtensorMap& matrix, int column, int row, const void* from) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&matrix),
               "r"(column), "r"(row), "r"(shared_address(from))
               : "memory");
}
__device__ inline void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all store groups but the last `groups` have been read from shared memory, which may then be reused.
template <int groups>
__device__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements (ldmatrix/stmatrix .x4). Thread t passes the address of row t % 8 of matrix t
// / 8 and holds columns 2 (t % 4) and the next of row t / 4.
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

// Changes the number of registers per thread for the calling warpgroup. The total must not exceed what the kernel was
// launched with.
template <int count>
__device__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// The wgmma descriptor of an operand in shared memory, K-major (rows of A or columns of B contiguous) or MN-major: then
// each box row holds 64 columns of one row, and the next 64 columns follow `stride_bytes` later.
__device__ inline std::uint64_t matrix_descriptor(const void* boxes, unsigned stride_bytes = 16) {
  constexpr std::uint64_t eight_rows = 8 * box_row_bytes, swizzled = 1;
  return (shared_address(boxes) & 0x3ffff) >> 4 | static_cast<std::uint64_t>(stride_bytes >> 4) << 16 |
         (eight_rows >> 4) << 32 | swizzled << 62;
}

// The descriptor of the operand `bytes` further on.
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

// After wgmma_wait(): keeps the compiler from moving reads of the accumulators before it, as it does not know that they
// were written asynchronously.
template <int size>
__device__ void fence_accumulators(float (&sum)[size]) {
#pragma unroll
  for (float& each : sum) asm volatile("" : "+f"(each));
}

// The accumulator of a product of 64 x `columns` x 16 by a warpgroup. Warp w holds rows 16 w to 16 w + 15; thread t
// holds, of every 8 columns, columns 2 (t % 4) and the next, of rows t / 4 and t / 4 + 8.
template <int columns>
using Accumulator = float[columns / 2];

#define FVLM_FOUR(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define FVLM_SIXTEEN(i) FVLM_FOUR(i), FVLM_FOUR(i + 4), FVLM_FOUR(i + 8), FVLM_FOUR(i + 12)
#define FVLM_OUTPUTS_8 FVLM_FOUR(0)
#define FVLM_OUTPUTS_16 FVLM_FOUR(0), FVLM_FOUR(4)
#define FVLM_OUTPUTS_32 FVLM_SIXTEEN(0)
#define FVLM_OUTPUTS_64 FVLM_SIXTEEN(0), FVLM_SIXTEEN(16)
#define FVLM_OUTPUTS_80 FVLM_OUTPUTS_64, FVLM_FOUR(32), FVLM_FOUR(36)
#define FVLM_OUTPUTS_96 FVLM_OUTPUTS_64, FVLM_SIXTEEN(32)
#define FVLM_OUTPUTS_128 FVLM_OUTPUTS_96, FVLM_SIXTEEN(48)
#define FVLM_OUTPUTS_192 FVLM_OUTPUTS_128, FVLM_SIXTEEN(64), FVLM_SIXTEEN(80)
#define FVLM_OUTPUTS_136 FVLM_OUTPUTS_128, FVLM_FOUR(64)
#define FVLM_REGISTERS_8 "%0, %1, %2, %3"
#define FVLM_REGISTERS_16 FVLM_REGISTERS_8 ", %4, %5, %6, %7"
#define FVLM_REGISTERS_32 FVLM_REGISTERS_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FVLM_REGISTERS_64                                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "     \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define FVLM_REGISTERS_80 FVLM_REGISTERS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FVLM_REGISTERS_96 FVLM_REGISTERS_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FVLM_REGISTERS_128                                                                                             \
  FVLM_REGISTERS_96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FVLM_REGISTERS_136 FVLM_REGISTERS_128 ", %64, %65, %66, %67"
#define FVLM_REGISTERS_192                                                                                             \
  FVLM_REGISTERS_128                                                                                                   \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "   \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

// Register names of the operands and of the predicate follow those of the accumulator. `a_major`: the transpose flag of
// A, if A is in shared memory.
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

// Numbers of 8 bits, of which 32 lie where 16 of 16 bits would.
struct E4m3 {
  std::uint8_t bits;
};

// sum = a b, or sum += a b if `adds`. Asynchronous until wgmma_wait(). With a_mn_major each box row of A holds 64 rows
// of one column.
template <class T, bool b_mn_major, bool a_mn_major = false, int size>
__device__ void wgmma(float (&sum)[size], std::uint64_t a, std::uint64_t b, bool adds) {
  if constexpr (std::is_same_v<T, E4m3>) {
    static_assert(size == 96 && !b_mn_major && !a_mn_major);
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {" FVLM_REGISTERS_192
                 "}, %96, %97, add, 1, 1;\n"
                 "}"
                 : FVLM_OUTPUTS_192
                 : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
    return;
  }
  static_assert(size == 8 || size == 16 || size == 32 || size == 40 || size == 64 || size == 68 || size == 96);
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
  } else if constexpr (size == 40) {
    FVLM_WGMMA_ANY(80, "%40, %41", "%42", "0, ", "l"(a));
  } else if constexpr (size == 64) {
    FVLM_WGMMA_ANY(128, "%64, %65", "%66", "0, ", "l"(a));
  } else if constexpr (size == 68) {
    FVLM_WGMMA_ANY(136, "%68, %69", "%70", "0, ", "l"(a));
  } else {
    FVLM_WGMMA_ANY(192, "%96, %97", "%98", "0, ", "l"(a));
  }
}

// The same with A in registers, in the accumulator's layout: columns 2 (t % 4) and the next of both rows, then the same
// 8 columns further on. The registers must not change before wgmma_wait().
template <class T, bool b_mn_major, int size>
__device__ void wgmma(float (&sum)[size], const std::uint32_t (&a)[4], std::uint64_t b, bool adds) {
  static_assert(size == 4 || size == 8 || size == 16 || size == 32 || size == 40 || size == 48 || size == 64);
  if constexpr (size == 4) {
    FVLM_WGMMA_ANY(8, "{%4, %5, %6, %7}, %8", "%9", "", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
  } else if constexpr (size == 8) {
    FVLM_WGMMA_ANY(16, "{%8, %9, %10, %11}, %12", "%13", "", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
  } else if constexpr (size == 16) {
    FVLM_WGMMA_ANY(32, "{%16, %17, %18, %19}, %20", "%21", "", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
  } else if constexpr (size == 32) {
    FVLM_WGMMA_ANY(64, "{%32, %33, %34, %35}, %36", "%37", "", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
  } else if constexpr (size == 40) {
    FVLM_WGMMA_ANY(80, "{%40, %41, %42, %43}, %44", "%45", "", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
  } else if constexpr (size == 48) {
    FVLM_WGMMA_ANY(96, "{%48, %49, %50, %51}, %52", "%53", "", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
  } else {
    FVLM_WGMMA_ANY(128, "{%64, %65, %66, %67}, %68", "%69", "", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
  }
}

#undef FVLM_WGMMA_ANY
#undef FVLM_WGMMA
#undef FVLM_REGISTERS_192
#undef FVLM_REGISTERS_136
#undef FVLM_REGISTERS_128
#undef FVLM_REGISTERS_96
#undef FVLM_REGISTERS_80
#undef FVLM_REGISTERS_64
#undef FVLM_REGISTERS_32
#undef FVLM_REGISTERS_16
#undef FVLM_REGISTERS_8
#undef FVLM_OUTPUTS_192
#undef FVLM_OUTPUTS_136
#undef FVLM_OUTPUTS_128
#undef FVLM_OUTPUTS_96
#undef FVLM_OUTPUTS_80
#undef FVLM_OUTPUTS_64
#undef FVLM_OUTPUTS_32
#undef FVLM_OUTPUTS_16
#undef FVLM_OUTPUTS_8
#undef FVLM_SIXTEEN
#undef FVLM_FOUR

} // namespace fvlm::plugins::hopper
