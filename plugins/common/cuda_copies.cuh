// cuda_copies.cuh: asynchronous copies of a few bytes to shared memory (cp.async). The groups of a thread complete in
// order.
#pragma once

#include "common/cuda_packs.cuh"

namespace fvlm::plugins {

// Starts to copy `bytes` (4, 8 or 16), or to set them to 0 where there is nothing to copy.
template <int bytes>
__device__ void copy_if(void* to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(bytes),
               "r"(exists ? bytes : 0)
               : "memory");
}
__device__ inline void cp_async_4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// 16 bytes, past the L1 cache.
__device__ inline void cp_async_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// The same to an address in shared memory; zeros where there is nothing to copy.
__device__ inline void cp_async_16_if(std::uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}

__device__ inline void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for all groups but the last `groups`.
template <int groups>
__device__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}
__device__ inline void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

} // namespace fvlm::plugins
