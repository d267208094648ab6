// cuda_copies.cuh: asynchronous copies of a few bytes to shared memory (cp.async).
#pragma once

#include "common/cuda_packs.cuh"

namespace fvlm::plugins {

// Starts to copy `bytes` (4, 8 or 16), or to set them to 0 where there is nothing to copy. Ends with wait_for_copies().
template <int bytes>
__device__ void copy_if(void* to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(bytes),
               "r"(exists ? bytes : 0)
               : "memory");
}
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

} // namespace fvlm::plugins
