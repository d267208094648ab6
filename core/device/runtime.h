// What a GPU does besides tensor operations: stretches of work that are recorded once and then enqueued as a whole. Its
// one implementation is libfvlm_cuda.so (device/cuda), which a program loads where a verb works on a GPU.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fvlm::device {

// Recorded work, together with the memory that it uses between its steps.
class Recording {
 public:
  Recording() = default;
  virtual ~Recording() = default;
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Enqueues it on the calling thread's current stream.
  virtual void replay() = 0;
  virtual int64_t kernels() const = 0;
};

// Something that the device did, in nanoseconds of one clock.
inline constexpr const char *copy_to_device = "memcpy to the device", *copy_to_host = "memcpy to the host";
struct Activity {
  std::string name; // of a kernel as its author named it; "memset", "memcpy" within the device, or one of those above
  uint64_t begin = 0, end = 0;
};

// A place in the work of a stream.
class Mark {
 public:
  Mark() = default;
  virtual ~Mark() = default;
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  virtual void wait() const = 0; // until the device has come here
  // What the device took from `earlier` to here, when it has come here.
  virtual double seconds_since(const Mark& earlier) const = 0;
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  // What `work` enqueues from this thread is recorded and not run. It has to have run once before in the same shapes,
  // may not wait for the device, and finds its results only in memory that was there before. Recordings share the
  // memory between their steps: none may run beside another. Throws what `work` throws, and Error(device) for what
  // cannot be recorded; the device works on.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work) = 0;
  virtual bool is_recording() const = 0;

  // Enqueues what `work` enqueues on a stream of its own, behind all that was enqueued before: it runs beside what
  // follows. `work`, and with it the tensors that it holds, so many bytes, is kept until it is done, or nearly so; what
  // it writes is there after join().
  virtual void beside(std::function<void()> work, int64_t bytes) = 0;
  virtual void join() noexcept = 0;

  // Behind all that was enqueued on the current stream.
  virtual std::shared_ptr<Mark> mark() = 0;
  // Enqueues what `copies` enqueues on a stream for copies, behind `after` and the copies before it: it runs beside
  // what is computed. Its end.
  virtual std::shared_ptr<Mark> copy_beside(const Mark& after, const std::function<void()>& copies) = 0;
  // What is enqueued on the current stream from here on comes behind the mark.
  virtual void follow(const Mark& mark) = 0;

  virtual void synchronize() = 0; // waits for all work on the current stream

  // What the device does while `work` runs, in order. Slows it down. Throws Error(device) where it cannot be seen.
  virtual std::vector<Activity> watch(const std::function<void()>& work) = 0;
  virtual uint64_t now() const = 0; // by the clock of activities
};

// The GPU's, where one is in use, else null.
Runtime* runtime();
void use_runtime(Runtime* runtime); // [setup]

inline bool is_recording() {
  const Runtime* gpu = runtime();
  return gpu && gpu->is_recording();
}

} // namespace fvlm::device
