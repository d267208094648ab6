// cuda_device.h: the check that every CUDA plugin makes when an instance is created, and what a device offers to
// kernels that not every device can run.
//
// FVLM_PORTABLE_KERNELS=1 leaves only the kernels that run on all supported devices, within the least shared memory
// that one of them has. So a Hopper tests, and times, what runs elsewhere.
#pragma once

#include <fvlm/cuda.hpp>

#include <cstdlib>
#include <string_view>

namespace fvlm::plugins {

// Number of multiprocessors (SMs). Throws if the device is not one that the bundled kernels run on (compute capability
// 8.0 or later).
inline int multiprocessor_count(fvlm_device device) {
  if (sdk::Support no = sdk::check_device(device, 8, 0); no.score == 0)
    throw sdk::Failure(FVLM_ERROR_DEVICE, "%s", no.reason);
  int count = 0;
  sdk::check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device.id),
                  "the number of multiprocessors");
  return count;
}

inline bool only_portable_kernels() {
  static const bool asked = [] {
    const char* value = std::getenv("FVLM_PORTABLE_KERNELS");
    return value && *value && value != std::string_view("0");
  }();
  return asked;
}

// Whether the kernels for sm_90a were compiled and the device can run them.
inline bool is_hopper(fvlm_device device) {
#ifdef FVLM_HAS_SM_90A
  return !only_portable_kernels() && sdk::check_device(device, 9, 0).score > 0 &&
         sdk::check_device(device, 9, 1).score == 0;
#else
  (void)device;
  return false;
#endif
}

// Shared memory that a block may take, in bytes: 99 KiB with compute capability 8.6, 8.9 and 12.0, 163 with 8.0, 227
// with 9.0 and 10.0.
inline int shared_memory_per_block(fvlm_device device) {
  constexpr int least = 99 << 10;
  if (only_portable_kernels()) return least;
  int limit = 0;
  sdk::check_cuda(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.id),
                  "the shared memory of a block");
  return limit;
}

// Whether a kernel's code is for Hopper or later. Code for older devices, which is also what the driver translates for
// a device that has none of its own, takes each block for a cluster and does not wait for the kernel before it.
template <class... Parameters>
bool is_compiled_for_hopper(void (*kernel)(Parameters...)) {
  cudaFuncAttributes code{};
  sdk::check_cuda(cudaFuncGetAttributes(&code, kernel), "cudaFuncGetAttributes");
  return !only_portable_kernels() && code.ptxVersion >= 90;
}

} // namespace fvlm::plugins
