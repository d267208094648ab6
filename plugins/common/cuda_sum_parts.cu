// cuda_sum_parts.cu: the second stage of parameters' gradients: the blocks' partial sums are added in the order of the
// blocks, so that the bits are the same each time.
#include "common/cuda_packs.cuh"
#include "common/cuda_rows.h"

namespace fvlm::plugins {
namespace {

constexpr int columns = 32, turns = 16;

template <class Gradient>
__global__ void __launch_bounds__(columns* turns) add_up(Sums p) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize(); // launched while the first stage is still under way
#endif
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * columns + threadIdx.x;
  const std::int64_t all = p.width * p.parameters;
  const bool second = column >= p.width;
  auto* const out = static_cast<Gradient*>(second ? p.out[1] : p.out[0]);
  const bool inside = column < all && out;
  float sum = 0;
  if (inside) {
    const float* part = p.parts.data + column;
#pragma unroll 8
    for (int block = static_cast<int>(threadIdx.y); block < p.blocks; block += turns) sum += part[block * all];
  }
  __shared__ float shared[turns][columns];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || !inside) return;
  sum = 0;
#pragma unroll
  for (int i = 0; i < turns; ++i) sum += shared[i][threadIdx.x];
  Gradient& gradient = out[second ? column - p.width : column];
  gradient = Gradient(p.accumulate ? static_cast<float>(gradient) + sum : sum);
}

} // namespace

void sum_parts(const Device& device, const Sums& sums) {
  const std::int64_t blocks = (sums.width * sums.parameters + columns - 1) / columns;
  if (blocks > 0x7fffffff)
    throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "rows of %lld elements", static_cast<long long>(sums.width));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(columns, turns);
  config.stream = device.stream;
  config.attrs = &early;
  config.numAttrs = 1;
  sdk::dispatch<float, BFloat16, Half>(sums.dtype, [&](auto gradient) {
    sdk::check_cuda(cudaLaunchKernelEx(&config, add_up<typename decltype(gradient)::type>, sums), "launch");
  });
}

} // namespace fvlm::plugins
