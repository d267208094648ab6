// cuda_test_device.cpp: linked into the tests of CUDA plugins, it makes them run on the GPU, with test memory pinned so
// that both sides can access it.
#include "common/testing/test_device.h"

#include <cuda_runtime_api.h>
#include <stdexcept>

namespace fvlm::testing {
namespace {

void demand(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

const bool on_the_gpu = [] {
  TestDevice& here = test_device();
  here.device = {FVLM_CUDA, 0};
  here.allocate = [](std::size_t bytes) {
    void* memory = nullptr;
    demand(cudaHostAlloc(&memory, bytes ? bytes : 1, cudaHostAllocDefault));
    return memory;
  };
  here.release = [](void* memory) { (void)cudaFreeHost(memory); };
  here.wait = [] { demand(cudaDeviceSynchronize()); };
  here.variants = [] { return std::vector<std::string>{"cuda"}; };
  const char* asked = std::getenv("FVLM_TEST_GPU");
  if (!asked || !*asked) here.missing = "needs a GPU: ./scripts/test --gpu";
  return true;
}();

} // namespace
} // namespace fvlm::testing
