#include "data/stream/frame_pool.h"

#include <new>

namespace fvlm {

std::shared_ptr<std::byte> allocate_host(size_t bytes) {
  constexpr std::align_val_t alignment{64};
  return {static_cast<std::byte*>(::operator new(bytes, alignment)),
          [](std::byte* memory) { ::operator delete (memory, std::align_val_t{64}); }};
}

std::shared_ptr<std::byte> FramePool::take() {
  std::unique_lock hold(lock_);
  released_.wait(hold, [&] { return stopped_ || !free_.empty() || allocated_ < max_buffers_; });
  if (stopped_) return nullptr;
  std::shared_ptr<std::byte> buffer;
  if (free_.empty()) {
    buffer = allocate_(bytes_);
    ++allocated_;
  } else {
    buffer = std::move(free_.back());
    free_.pop_back();
  }
  // The buffer keeps the pool alive.
  return {buffer.get(), [pool = shared_from_this(), buffer](std::byte*) { pool->release(buffer); }};
}

void FramePool::release(std::shared_ptr<std::byte> buffer) {
  {
    const std::lock_guard hold(lock_);
    free_.push_back(std::move(buffer));
  }
  released_.notify_one();
}

void FramePool::stop() {
  {
    const std::lock_guard hold(lock_);
    stopped_ = true;
  }
  released_.notify_all();
}

} // namespace fvlm
