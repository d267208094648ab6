#include "device/runtime.h"

#include "base/error.h"
#include "device/cuda/activities.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <algorithm>
#include <cuda_runtime_api.h>
#include <exception>
#include <optional>
#include <utility>

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
  explicit CudaRecording(int64_t& alive) : alive_(alive) { ++alive_; }
  ~CudaRecording() override { --alive_; }
  void replay() override { graph.replay(); }
  int64_t kernels() const override { return count; }

  at::cuda::CUDAGraph graph{true}; // keeps what it was made from, to be counted
  int64_t count = 0;

 private:
  int64_t& alive_;
};

class CudaMark : public Mark {
 public:
  explicit CudaMark(const c10::cuda::CUDAStream& stream) { event_.record(stream); }
  void wait() const override { event_.synchronize(); }
  double seconds_since(const Mark& earlier) const override { return of(earlier).elapsed_time(event_) / 1e3; }

  static at::cuda::CUDAEvent& of(const Mark& mark) { return dynamic_cast<const CudaMark&>(mark).event_; }

 private:
  mutable at::cuda::CUDAEvent event_{cudaEventDefault};
};

class CudaRuntime : public Runtime {
 public:
  // Work can be recorded on any stream but the default one, and libraries keep their workspaces by stream: this thread
  // leaves the default one for good.
  CudaRuntime()
      : device_(started_device()), aside_(c10::cuda::getStreamFromPool()), copies_(c10::cuda::getStreamFromPool()) {
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(true)); // what runs beside makes way
  }

  std::unique_ptr<Recording> record(const std::function<void()>& work) override {
    synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache(); // while recording it gives back nothing
    // LibTorch takes no more into a pool whose last recording has gone; its memory goes with it.
    if (alive_ == 0) pool_ = at::cuda::graph_pool_handle();
    auto recording = std::make_unique<CudaRecording>(alive_);
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

  void beside(std::function<void()> work, int64_t bytes) override {
    wait_for(c10::cuda::getCurrentCUDAStream(), aside_);
    {
      const c10::cuda::CUDAStreamGuard guard(aside_);
      work();
    }
    recent_.hold(std::move(work), bytes);
    if (recent_.bytes < most_held) return;
    if (earlier_.done) earlier_.done->block(c10::cuda::getCurrentCUDAStream());
    recent_.done.emplace().record(aside_);
    earlier_ = std::exchange(recent_, Held());
  }
  void join() noexcept override {
    if (recent_.work.empty() && earlier_.work.empty()) return;
    try {
      wait_for(aside_, c10::cuda::getCurrentCUDAStream());
    } catch (const c10::Error&) { // the device's, which tells it again with whatever comes next
    }
    recent_ = Held();
    earlier_ = Held();
  }

  std::shared_ptr<Mark> mark() override { return std::make_shared<CudaMark>(c10::cuda::getCurrentCUDAStream()); }
  std::shared_ptr<Mark> copy_beside(const Mark& after, const std::function<void()>& copies) override {
    CudaMark::of(after).block(copies_);
    const c10::cuda::CUDAStreamGuard guard(copies_);
    copies();
    return std::make_shared<CudaMark>(copies_);
  }
  void follow(const Mark& mark) override { CudaMark::of(mark).block(c10::cuda::getCurrentCUDAStream()); }

  std::vector<Activity> watch(const std::function<void()>& work) override {
    return watch_activities([&] {
      work();
      synchronize();
    });
  }
  uint64_t now() const override { return activity_clock(); }

  void synchronize() override { c10::cuda::getCurrentCUDAStream().synchronize(); }

 private:
  // Work that runs beside, with what it reads: its memory is not given to others before they wait for it.
  struct Held {
    std::vector<std::function<void()>> work;
    int64_t bytes = 0;
    std::optional<at::cuda::CUDAEvent> done;

    void hold(std::function<void()> more, int64_t of) {
      work.push_back(std::move(more));
      bytes += of;
    }
  };
  static constexpr int64_t most_held = int64_t{128} << 20; // twice this much

  static void wait_for(const c10::cuda::CUDAStream& one, const c10::cuda::CUDAStream& other) {
    at::cuda::CUDAEvent reached;
    reached.record(one);
    reached.block(other);
  }

  // What capture_end() leaves behind where it fails.
  void abandon() {
    const auto stream = c10::cuda::getCurrentCUDAStream();
    cudaGraph_t half = nullptr;
    if (cudaStreamEndCapture(stream, &half) == cudaSuccess && half) (void)cudaGraphDestroy(half);
    (void)cudaGetLastError();
    const auto try_both = [](const auto& end, const auto& release) {
      try {
        end();
        release();
      } catch (const c10::Error&) { // it had come to an end there
      }
    };
    namespace on_device = c10::cuda::CUDACachingAllocator;
    auto& on_host = *at::getHostAllocator(at::kCUDA);
    try_both([&] { on_device::endAllocateToPool(device_, pool_); }, [&] { on_device::releasePool(device_, pool_); });
    try_both([&] { on_host.end_allocate_to_pool(pool_); }, [&] { on_host.release_pool(pool_); });
  }

  // LibTorch starts a device with its first tensor, which is later than here.
  static c10::DeviceIndex started_device() {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    return c10::cuda::current_device();
  }

  c10::DeviceIndex device_;
  c10::cuda::CUDAStream aside_, copies_;
  Held recent_, earlier_;
  at::cuda::MempoolId_t pool_{}; // of all recordings that are alive
  int64_t alive_ = 0;
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
