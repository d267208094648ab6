// fvlm/cuda.hpp: what a CUDA plugin adds to fvlm.hpp. Needs the CUDA toolkit; compile with nvcc.
#ifndef FVLM_CUDA_HPP
#define FVLM_CUDA_HPP

#include <fvlm/fvlm.hpp>

#include <cuda_runtime.h>

FVLM_SDK_BEGIN

// Turns an error of the CUDA runtime into a Failure, and clears it, so that the next cudaGetLastError() does not see
// it.
inline void check_cuda(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();
  throw Failure(FVLM_ERROR_DEVICE, "%s: %s", what, cudaGetErrorString(result));
}

inline cudaStream_t stream_of(const fvlm_call& call) {
  return static_cast<cudaStream_t>(call.stream);
}

// For supports(): `if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;`
// Refuses the CPU, a device that does not exist, and one below the compute capability that was compiled for.
inline Support check_device(fvlm_device device, int min_major, int min_minor) {
  if (device.type != FVLM_CUDA) return refuse("runs on CUDA only");
  int count = 0, major = 0, minor = 0;
  cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && device.id >= count) return refuse("no CUDA device %d, there are %d", device.id, count);
  if (result == cudaSuccess) result = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.id);
  if (result == cudaSuccess) result = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.id);
  if (result != cudaSuccess) {
    (void)cudaGetLastError();
    return refuse("no CUDA device: %s", cudaGetErrorString(result));
  }
  if (major * 10 + minor < min_major * 10 + min_minor) {
    return refuse("needs sm_%d%d, the device is sm_%d%d", min_major, min_minor, major, minor);
  }
  return accept(1, "sm_%d%d", major, minor);
}

#ifdef __CUDACC__

// The index of the item that a thread of launch() works on. Threads whose index is `count` or more have none.
__device__ inline std::int64_t item_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// Enqueues kernel(arguments...) on the call's stream with one thread per item. [step thread]
template <class... Parameters, class... Arguments>
void launch(const fvlm_call& call, std::int64_t count, void (*kernel)(Parameters...), const Arguments&... arguments) {
  constexpr std::int64_t threads = 128;
  if (count <= 0) return;
  const std::int64_t blocks = (count + threads - 1) / threads;
  if (blocks > 0x7fffffff) throw Failure(FVLM_ERROR_UNSUPPORTED, "%lld items", static_cast<long long>(count));
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream_of(call)>>>(arguments...);
  check_cuda(cudaGetLastError(), "launch");
}

#endif

FVLM_SDK_END

#endif
