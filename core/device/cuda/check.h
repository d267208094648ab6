// Results of CUDA's calls as errors.
#pragma once
#include "base/error.h"

#include <cuda_runtime_api.h>

namespace fvlm::device {

inline void check_cuda(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError(); // resets the error, which the next call would report again
  throw Error(ErrorKind::device, "{}: {}", what, cudaGetErrorString(result));
}

} // namespace fvlm::device
