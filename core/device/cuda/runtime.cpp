#include "device/runtime.h"

#include "base/error.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <algorithm>
#include <cuda_runtime_api.h>
#include <exception>

namespace fvlm::device {
namespace {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError(); // not the next one's
  throw Error(ErrorKind::device, fmt::format("{}: {}", what, cudaGetErrorString(result)));
}

int64_t kernels_of(cudaGraph_t graph) {
  size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), "a recording cannot be read");
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph, nodes.data(), &count), "a recording cannot be read");
  return std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(node, &type), "a recording cannot be read");
    return type == cudaGraphNodeTypeKernel;
  });
}

class CudaRecording : public Recording {
 public:
  void replay() override { graph.replay(); }
  int64_t kernels() const override { return count; }

  at::cuda::CUDAGraph graph{true}; // keeps what it was made from, to be counted
  int64_t count = 0;
};

class CudaRuntime : public Runtime {
 public:
  // Work can be recorded on any stream but the default one, and libraries keep their workspaces by stream: this thread
  // leaves the default one for good.
  CudaRuntime() : pool_(at::cuda::graph_pool_handle()) {
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool());
  }

  std::unique_ptr<Recording> record(const std::function<void()>& work) override {
    synchronize();
    auto recording = std::make_unique<CudaRecording>();
    recording->graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    recording_ = true;
    std::exception_ptr thrown;
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
    recording_ = false;
    try {
      recording->graph.capture_end();
    } catch (const c10::Error& error) {
      abandon();
      if (!thrown)
        throw Error(ErrorKind::device, fmt::format("the work cannot be recorded: {}", error.what_without_backtrace()));
    }
    if (thrown) std::rethrow_exception(thrown);
    recording->count = kernels_of(recording->graph.raw_cuda_graph());
    recording->graph.instantiate();
    return recording;
  }

  bool is_recording() const override { return recording_; }

  void synchronize() override { c10::cuda::getCurrentCUDAStream().synchronize(); }

 private:
  // What capture_end() leaves behind where it fails.
  void abandon() {
    const auto stream = c10::cuda::getCurrentCUDAStream();
    cudaGraph_t half = nullptr;
    if (cudaStreamEndCapture(stream, &half) == cudaSuccess && half) (void)cudaGraphDestroy(half);
    (void)cudaGetLastError();
    c10::cuda::CUDACachingAllocator::endAllocateToPool(stream.device_index(), pool_);
    c10::cuda::CUDACachingAllocator::releasePool(stream.device_index(), pool_);
  }

  at::cuda::MempoolId_t pool_;
  bool recording_ = false;
};

} // namespace
} // namespace fvlm::device

// The program's way in (cli/tensor_module.cpp). Called on the thread that works on the device, when LibTorch's CUDA
// libraries are loaded; lives as long as the process.
extern "C" __attribute__((visibility("default"))) fvlm::device::Runtime* fvlm_cuda_runtime() {
  static auto* const runtime = new fvlm::device::CudaRuntime;
  return runtime;
}
