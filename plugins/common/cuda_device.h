// cuda_device.h: the check that every CUDA plugin makes when an instance is created.
#pragma once

#include <fvlm/cuda.hpp>

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

} // namespace fvlm::plugins
