// Records what a plugin enqueues as a CUDA graph and replays it, by way of the driver alone.
#pragma once
#include <cstddef>
#include <string>

namespace fvlm::check {

// A stream that waits for nobody, the null stream included: what the engine lends as well.
class Stream {
 public:
  Stream(); // Throws Refused where the driver cannot do it.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void* get() const { return stream_; }

 private:
  void* stream_ = nullptr;
};

class Recorder {
 public:
  Recorder() = default;
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void* stream() const { return stream_.get(); }
  // What is enqueued on stream() between these two becomes the graph; calls that a recording forbids fail, on any
  // thread. "" or why there is no graph.
  std::string begin();
  std::string end();
  // Runs the graph and waits for it. "" or what failed.
  std::string replay();
  size_t nodes() const { return nodes_; } // kernels and copies

 private:
  Stream stream_;
  void* graph_ = nullptr;
  void* executable_ = nullptr;
  size_t nodes_ = 0;
};

// Waits for all that the device was given to do.
void wait_for_device();

} // namespace fvlm::check
