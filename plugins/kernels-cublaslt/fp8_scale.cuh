// fp8_scale.cuh: the scale of a row or a column of e4m3, the conversion of what it is multiplied by, and the search for
// the largest magnitudes by clusters.
#pragma once

#include "common/cuda_cluster.cuh"
#include "common/cuda_packs.cuh"
#include "common/cuda_rows.h"

#include <cuda_fp8.h>

namespace fvlm::plugins {

// What the values of a row are multiplied by, and the power of two that products are multiplied by in turn.
struct RowScale {
  float factor, scale;

  __device__ explicit RowScale(float largest) {
    // The exponent of largest / 448, rounded up: 448 is 1.75 * 2^8. Neither power is subnormal.
    const int bits = __float_as_int(fmaxf(largest, 0x1p-100f)),
              exponent = (bits >> 23) - 8 + ((bits & 0x7fffff) > 0x600000);
    factor = __int_as_float((254 - exponent) << 23);
    // The conversion saturates infinity, but not what is multiplied by this.
    scale = isinf(largest) ? largest : __int_as_float(exponent << 23);
  }
};

__device__ inline std::uint16_t two_e4m3(float first, float second) {
  return __nv_cvt_float2_to_fp8x2({first, second}, __NV_SATFINITE, __NV_E4M3);
}

__device__ inline std::uint32_t four_e4m3(float first, float second, float third, float fourth) {
  return two_e4m3(first, second) | static_cast<std::uint32_t>(two_e4m3(third, fourth)) << 16;
}

// What x leaves when it is rounded.
__device__ inline float rest_of_e4m3(float x) {
  return x -
         __half2float(__half(__nv_cvt_fp8_to_halfraw(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3), __NV_E4M3)));
}

template <int count>
__device__ float largest_of(const float (&values)[count], float largest) {
#pragma unroll
  for (int i = 0; i < count; ++i) largest = fmaxf(largest, fabsf(values[i]));
  return largest;
}

// The largest of each of `count` numbers that the blocks of a cluster have in shared memory, in place of its own.
template <int count>
__device__ void find_largest_of_cluster(float* own) {
  Cluster::arrive();
  Cluster::wait();
  float largest = 0;
  if (threadIdx.x < count)
    for (int rank = 0; rank < Cluster::size(); ++rank)
      largest = fmaxf(largest, Cluster::load_float(own + threadIdx.x, rank));
  Cluster::arrive();
  Cluster::wait();
  if (threadIdx.x < count) own[threadIdx.x] = largest;
  __syncthreads();
}

constexpr unsigned max_cluster_blocks = 8;

// `count` clusters, which lie beside each other in y.
template <class... Parameters, class... Arguments>
void launch_clusters(const Device& device, void (*kernel)(Parameters...), unsigned blocks, unsigned count, int threads,
                     const Arguments&... arguments) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks, count);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = device.stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), "launch");
}

} // namespace fvlm::plugins
