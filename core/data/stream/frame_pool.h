// A pool of a limited number of frame buffers, which are allocated on demand and reused. A buffer grows for a pack that
// needs more than the usual: cells of videos take several frames each.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace fvlm {

// Allocates host memory; pinned memory where a GPU reads it.
using AllocateHost = std::function<std::shared_ptr<std::byte>(size_t bytes)>;
std::shared_ptr<std::byte> allocate_host(size_t bytes); // pageable, aligned to 64 bytes

class FramePool : public std::enable_shared_from_this<FramePool> {
 public:
  FramePool(size_t bytes, size_t max_buffers, AllocateHost allocate)
      : bytes_(bytes), max_buffers_(max_buffers), allocate_(std::move(allocate)) {}

  // Blocks until a buffer is free; it returns to the pool with its last reference. Null after stop(). [any thread]
  std::shared_ptr<std::byte> take(size_t bytes);
  void stop();

 private:
  struct Buffer {
    std::shared_ptr<std::byte> memory;
    size_t bytes = 0;
  };
  void release(Buffer buffer);
  const size_t bytes_, max_buffers_;
  const AllocateHost allocate_;
  std::mutex lock_; // of all below
  std::condition_variable released_;
  std::vector<Buffer> free_;
  size_t allocated_ = 0;
  bool stopped_ = false;
};

} // namespace fvlm
