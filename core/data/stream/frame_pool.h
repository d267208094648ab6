// Buffers for the frames of packs: made when they are first needed, so many and no more, and used again and again.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace fvlm {

// Memory of the host: pinned where a GPU reads it.
using AllocateHost = std::function<std::shared_ptr<std::byte>(size_t bytes)>;
std::shared_ptr<std::byte> allocate_host(size_t bytes); // of the plain sort, aligned to 64 bytes

class FramePool : public std::enable_shared_from_this<FramePool> {
 public:
  FramePool(size_t bytes, size_t most, AllocateHost allocate)
      : bytes_(bytes), most_(most), allocate_(std::move(allocate)) {}

  // Waits until one is free; it comes back by itself. Nothing after stop(). [any thread]
  std::shared_ptr<std::byte> take();
  void stop();

 private:
  void bring_back(std::shared_ptr<std::byte> buffer);
  const size_t bytes_, most_;
  const AllocateHost allocate_;
  std::mutex lock_; // of all below
  std::condition_variable freed_;
  std::vector<std::shared_ptr<std::byte>> free_;
  size_t made_ = 0;
  bool stopped_ = false;
};

} // namespace fvlm
