// Captures what a plugin enqueues as a CUDA graph and replays it, through the CUDA driver's API alone.
#pragma once
#include <cstddef>
#include <string>

namespace fvlm::check {

// A non-blocking stream (it does not synchronize with the null stream), as the engine passes to plugins.
class Stream {
 public:
  Stream(); // Throws RowAborted where the driver cannot do it.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void* get() const { return stream_; }

 private:
  void* stream_ = nullptr;
};

class GraphCapture {
 public:
  GraphCapture() = default;
  ~GraphCapture();
  GraphCapture(const GraphCapture&) = delete;
  GraphCapture& operator=(const GraphCapture&) = delete;

  void* stream() const { return stream_.get(); }
  // Work enqueued on stream() between these two becomes the graph; calls that a capture forbids fail, on any
  // thread. Returns "" or why there is no graph.
  std::string begin();
  std::string end();
  // Runs the graph and waits for it. Returns "" or what failed.
  std::string replay();
  size_t nodes() const { return nodes_; } // kernels and copies

 private:
  Stream stream_;
  void* graph_ = nullptr;
  void* executable_ = nullptr;
  size_t nodes_ = 0;
};

// cuCtxSynchronize().
void wait_for_device();

} // namespace fvlm::check
