// cuda_device.h: the device that an instance is made for.
#pragma once

#include <fvlm/cuda.hpp>

namespace fvlm::plugins {

// How many multiprocessors it has. Throws where it is none that the bundled plugins' kernels run on.
inline int multiprocessor_count(fvlm_device device) {
  if (sdk::Support no = sdk::check_device(device, 8, 0); no.score == 0)
    throw sdk::Failure(FVLM_ERROR_DEVICE, "%s", no.reason);
  int count = 0;
  sdk::check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device.id),
                  "the number of multiprocessors");
  return count;
}

} // namespace fvlm::plugins
