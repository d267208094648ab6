// device/runtime.h on CUDA streams, events and graphs, by way of LibTorch.
#include "device/runtime.h"

#include "base/error.h"
#include "device/cuda/activities.h"
#include "device/cuda/check.h"
#include "device/cuda/peer_access.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cuda_runtime_api.h>
#include <exception>
#include <optional>
#include <set>
#include <utility>

namespace fvlm::device {
namespace {

int64_t kernels_of(cudaGraph_t graph) {
  size_t count = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &count), "cannot read the captured graph");
  std::vector<cudaGraphNode_t> nodes(count);
  check_cuda(cudaGraphGetNodes(graph, nodes.data(), &count), "cannot read the captured graph");
  return std::ranges::count_if(nodes, [](cudaGraphNode_t node) {
    auto type = cudaGraphNodeTypeEmpty;
    // Unlike the driver, the runtime has no type for memory operations of streams, and fails.
    if (cudaGraphNodeGetType(node, &type) != cudaSuccess) (void)cudaGetLastError();
    return type == cudaGraphNodeTypeKernel;
  });
}

class CudaGraph : public CapturedGraph {
 public:
  explicit CudaGraph(std::set<CudaGraph*>& alive) : alive_(alive) { alive_.insert(this); }
  ~CudaGraph() override { alive_.erase(this); }
  void replay() override { graph.replay(); }
  int64_t kernels() const override { return count; }
  bool is_dropped() const override { return dropped_; }
  void drop() {
    graph.reset();
    dropped_ = true;
  }

  at::cuda::CUDAGraph graph{true}; // keep_graph: the nodes are counted after capture
  int64_t count = 0;

 private:
  std::set<CudaGraph*>& alive_;
  bool dropped_ = false;
};

class CudaEvent : public Event {
 public:
  explicit CudaEvent(const c10::cuda::CUDAStream& stream) { event_.record(stream); }
  void wait() const override { event_.synchronize(); }
  double seconds_since(const Event& earlier) const override { return of(earlier).elapsed_time(event_) / 1e3; }

  static at::cuda::CUDAEvent& of(const Event& mark) { return dynamic_cast<const CudaEvent&>(mark).event_; }

 private:
  mutable at::cuda::CUDAEvent event_{cudaEventDefault};
};

class CudaRuntime : public Runtime {
 public:
  // The default stream cannot be captured, and libraries keep one workspace for each stream, so this thread leaves the
  // default stream for good.
  CudaRuntime()
      : device_(started_device()),
        stream_(c10::cuda::getStreamFromPool(true)), // high priority: side streams yield to it
        side_stream_(c10::cuda::getStreamFromPool()), prefetch_stream_(c10::cuda::getStreamFromPool()),
        communication_stream_(c10::cuda::getStreamFromPool(true)) {
    enter_thread();
  }

  std::unique_ptr<CapturedGraph> capture(const std::function<void()>& work) override {
    synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache(); // during capture it frees nothing
    // LibTorch cannot reuse a pool whose last graph was destroyed, because that frees the pool.
    if (alive_.empty()) pool_ = at::cuda::graph_pool_handle();
    auto graph = std::make_unique<CudaGraph>(alive_);
    graph->graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    capturing_ = true;
    std::exception_ptr thrown;
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
    capturing_ = false;
    try {
      graph->graph.capture_end();
    } catch (const c10::Error& error) {
      abandon();
      if (!thrown)
        throw Error(ErrorKind::device, "cannot capture the work as a CUDA graph: {}", error.what_without_backtrace());
    }
    if (thrown) std::rethrow_exception(thrown);
    graph->count = kernels_of(graph->graph.raw_cuda_graph());
    graph->graph.instantiate();
    return graph;
  }

  bool is_capturing() const override { return capturing_; }

  bool drop_graphs() override {
    if (alive_.empty()) return false;
    synchronize();
    for (CudaGraph* graph : std::exchange(alive_, {})) graph->drop();
    c10::cuda::CUDACachingAllocator::emptyCache();
    return true;
  }

  void run_on_side_stream(std::function<void()> work, int64_t bytes) override {
    wait_for(c10::cuda::getCurrentCUDAStream(), side_stream_);
    {
      const c10::cuda::CUDAStreamGuard guard(side_stream_);
      work();
    }
    recent_.hold(std::move(work), bytes);
    if (recent_.bytes < max_held_bytes) return;
    if (earlier_.done) earlier_.done->block(c10::cuda::getCurrentCUDAStream());
    recent_.done.emplace().record(side_stream_);
    earlier_ = std::exchange(recent_, Held());
  }
  void join_side_stream() noexcept override {
    if (!has_side_work()) return;
    try {
      wait_for(side_stream_, c10::cuda::getCurrentCUDAStream());
    } catch (const c10::Error&) { // a device error, which the next call reports again
    }
    recent_ = Held();
    earlier_ = Held();
  }

  std::shared_ptr<Event> record_event() override {
    return std::make_shared<CudaEvent>(c10::cuda::getCurrentCUDAStream());
  }
  std::shared_ptr<Event> copy_on_prefetch_stream(const Event& after, const std::function<void()>& copies) override {
    CudaEvent::of(after).block(prefetch_stream_);
    const c10::cuda::CUDAStreamGuard guard(prefetch_stream_);
    copies();
    return std::make_shared<CudaEvent>(prefetch_stream_);
  }
  std::shared_ptr<Event> run_on_communication_stream(const std::function<void(void* stream)>& work) override {
    wait_for(c10::cuda::getCurrentCUDAStream(), communication_stream_);
    if (has_side_work()) wait_for(side_stream_, communication_stream_);
    const c10::cuda::CUDAStreamGuard guard(communication_stream_);
    work(communication_stream_.stream());
    return std::make_shared<CudaEvent>(communication_stream_);
  }
  void wait_event(const Event& mark) override { CudaEvent::of(mark).block(c10::cuda::getCurrentCUDAStream()); }

  PeerAccess* peer_access() override {
    if (!peer_access_) peer_access_ = make_cuda_peer_access();
    return peer_access_.get();
  }

  std::vector<Activity> profile(const std::function<void()>& work) override {
    return watch_activities([&] {
      work();
      synchronize();
    });
  }
  uint64_t now() const override { return activity_clock(); }

  void synchronize() override { c10::cuda::getCurrentCUDAStream().synchronize(); }
  void enter_thread() override { c10::cuda::setCurrentCUDAStream(stream_); }

 private:
  // Work on the side stream, with the tensors that it captured, so that the allocator does not reuse their memory
  // before the current stream waits for the work.
  struct Held {
    std::vector<std::function<void()>> work;
    int64_t bytes = 0;
    std::optional<at::cuda::CUDAEvent> done;

    void hold(std::function<void()> more, int64_t of) {
      work.push_back(std::move(more));
      bytes += of;
    }
  };
  static constexpr int64_t max_held_bytes = int64_t{128} << 20; // for each of the two batches

  static void wait_for(const c10::cuda::CUDAStream& one, const c10::cuda::CUDAStream& other) {
    at::cuda::CUDAEvent reached;
    reached.record(one);
    reached.block(other);
  }

  bool has_side_work() const { return !recent_.work.empty() || !earlier_.work.empty(); } // since it was joined

  // Cleans up after a failed capture_end().
  void abandon() {
    const auto stream = c10::cuda::getCurrentCUDAStream();
    cudaGraph_t half = nullptr;
    if (cudaStreamEndCapture(stream, &half) == cudaSuccess && half) (void)cudaGraphDestroy(half);
    (void)cudaGetLastError();
    const auto try_both = [](const auto& end, const auto& release) {
      try {
        end();
        release();
      } catch (const c10::Error&) { // already ended
      }
    };
    namespace on_device = c10::cuda::CUDACachingAllocator;
    auto& on_host = *at::getHostAllocator(at::kCUDA);
    try_both([&] { on_device::endAllocateToPool(device_, pool_); }, [&] { on_device::releasePool(device_, pool_); });
    try_both([&] { on_host.end_allocate_to_pool(pool_); }, [&] { on_host.release_pool(pool_); });
  }

  // LibTorch initializes a device with its first tensor, which is too late.
  static c10::DeviceIndex started_device() {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    return c10::cuda::current_device();
  }

  c10::DeviceIndex device_;
  c10::cuda::CUDAStream stream_, side_stream_, prefetch_stream_, communication_stream_;
  Held recent_, earlier_;
  std::unique_ptr<PeerAccess> peer_access_;
  at::cuda::MempoolId_t pool_{}; // shared by all graphs
  std::set<CudaGraph*> alive_;
  bool capturing_ = false;
};

} // namespace
} // namespace fvlm::device

// The entry point (see cli/tensor_module.cpp). Call it after LibTorch's CUDA libraries are loaded, on the thread that
// will use the device. The object is never destroyed.
extern "C" __attribute__((visibility("default"))) fvlm::device::Runtime* fvlm_cuda_runtime() {
  static auto* const runtime = new fvlm::device::CudaRuntime;
  return runtime;
}
