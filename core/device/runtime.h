// The interface to what the engine does on a GPU besides tensor operations: CUDA graphs, a side stream, streams for
// prefetching and for communication, events, memory of other processes, profiling. Its implementation is
// libfvlm_cuda.so (device/cuda), which the program loads where it works on a GPU; everything else compiles without
// CUDA.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fvlm::device {

// A captured CUDA graph, with the memory pool of its intermediate results.
class CapturedGraph {
 public:
  CapturedGraph() = default;
  virtual ~CapturedGraph() = default;
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  // Enqueues the graph on the calling thread's current stream.
  virtual void replay() = 0;
  virtual int64_t kernels() const = 0; // number of kernel nodes
  virtual bool is_dropped() const = 0; // by Runtime::drop_graphs(); it cannot be replayed any more
};

// A kernel, copy or memset that the device executed. Times are nanoseconds of the profiler's clock.
inline constexpr const char *copy_to_device = "memcpy to the device", *copy_to_host = "memcpy to the host";
struct Activity {
  std::string name; // demangled name of the kernel; else "memset", "memcpy" (within the device) or one of those above
  uint64_t begin = 0, end = 0;
};

// A CUDA event.
class Event {
 public:
  Event() = default;
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  virtual void wait() const = 0; // blocks the host until the device has reached the event
  // Elapsed time between two events that the device has reached.
  virtual double seconds_since(const Event& earlier) const = 0;
};

class PeerAccess;

class Runtime {
 public:
  virtual ~Runtime() = default;

  // Captures what `work` enqueues from this thread into a CUDA graph, without running it. `work` must have run before
  // with the same shapes, must not synchronize, and can leave results only in memory that was allocated before. All
  // graphs share one memory pool, so two of them must not run concurrently. Rethrows what `work` throws, and throws
  // Error(device) for what cannot be captured; the device stays usable.
  virtual std::unique_ptr<CapturedGraph> capture(const std::function<void()>& work) = 0;
  virtual bool is_capturing() const = 0;
  // Frees the memory of all captured graphs, which only they can use. Returns false where there are none.
  virtual bool drop_graphs() = 0;

  // Runs `work`, which enqueues on the side stream: after everything enqueued before, concurrently with what the
  // current stream gets next. The function object, and with it the tensors it captured (of so many bytes), is kept
  // until the work is done or nearly so. The current stream may use the results after join().
  virtual void run_on_side_stream(std::function<void()> work, int64_t bytes) = 0;
  // Makes the current stream wait for the side stream.
  virtual void join_side_stream() noexcept = 0;

  // Records an event on the current stream.
  virtual std::shared_ptr<Event> record_event() = 0;
  // Runs `copies`, which enqueues on the prefetch stream, after the event: concurrently with computation. Returns an
  // event for their completion.
  virtual std::shared_ptr<Event> copy_on_prefetch_stream(const Event& after, const std::function<void()>& copies) = 0;
  // Runs `work`, which enqueues on the communication stream, the current one meanwhile and the cudaStream_t that it is
  // given: after everything enqueued before, on the side stream, too, concurrently with what the current stream gets
  // next. Returns an event for its completion. Can be captured, where the current stream waits for the event before the
  // capture ends.
  virtual std::shared_ptr<Event> run_on_communication_stream(const std::function<void(void* stream)>& work) = 0;
  // Makes the current stream wait for the event.
  virtual void wait_event(const Event& event) = 0;

  // See device/peer_access.h. Throws Error(device) where the driver has none.
  virtual PeerAccess* peer_access() { return nullptr; }

  virtual void synchronize() = 0; // blocks the host until the current stream is done

  // Lets the calling thread enqueue on the stream of the thread that made the runtime, instead of the default stream,
  // which cannot be captured. Only one of the threads may work on the GPU at a time.
  virtual void enter_thread() = 0;

  // Profiles the device while `work` runs, which makes it slower. In order of time. Throws Error(device) where CUPTI is
  // not available.
  virtual std::vector<Activity> profile(const std::function<void()>& work) = 0;
  virtual uint64_t now() const = 0; // by the clock of activities
};

// The runtime of the GPU in use; null on the CPU.
Runtime* runtime();
void use_runtime(Runtime* runtime); // [setup]

// Whether a CUDA graph is being captured.
inline bool is_capturing() {
  const Runtime* gpu = runtime();
  return gpu && gpu->is_capturing();
}

} // namespace fvlm::device
