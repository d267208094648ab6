// cuda_cluster.cuh: thread block clusters and distributed shared memory. On devices before Hopper a block is a cluster
// of its own.
#pragma once

#include <fvlm/cuda.hpp>

namespace fvlm::plugins {

__device__ inline void add(float4& sum, const float4& other) {
  sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
}

struct Cluster {
  __device__ static int size() {
#if __CUDA_ARCH__ >= 900
    int blocks;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
    return blocks;
#else
    return 1;
#endif
  }
  __device__ static int rank() {
#if __CUDA_ARCH__ >= 900
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
#else
    return 0;
#endif
  }
  // A split barrier: what the threads of the cluster wrote before arrive() is visible after wait().
  __device__ static void arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#else
    __syncthreads();
#endif
  }
  __device__ static void wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
  }
  // Arrives without ordering memory; the matching wait() only waits until all blocks have started. Writes that a later
  // arrive() has to publish must already have been made visible.
  __device__ static void arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
  }
  // Loads from the block of that rank, at the address that `local` has in this block's shared memory.
  __device__ static float4 load(const float* local, [[maybe_unused]] int rank) {
#if __CUDA_ARCH__ >= 900
    float4 value;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(remote_address(local, rank)));
    return value;
#else
    return *reinterpret_cast<const float4*>(local);
#endif
  }
  __device__ static float load_float(const float* local, [[maybe_unused]] int rank) {
#if __CUDA_ARCH__ >= 900
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote_address(local, rank)));
    return value;
#else
    return *local;
#endif
  }
  // Stores to that address.
  __device__ static void store(float* local, [[maybe_unused]] int rank, float value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote_address(local, rank)), "f"(value) : "memory");
#else
    *local = value;
#endif
  }
  __device__ static void store(float* local, [[maybe_unused]] int rank, const float4& value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote_address(local, rank)), "f"(value.x),
                 "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
#else
    *reinterpret_cast<float4*>(local) = value;
#endif
  }

 private:
#if __CUDA_ARCH__ >= 900
  __device__ static unsigned remote_address(const float* local, int rank) {
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(local));
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
  }
#endif
};

} // namespace fvlm::plugins
