#include "data/stream/frame_pool.h"

#include <algorithm>
#include <new>

namespace fvlm {

std::shared_ptr<std::byte> allocate_host(size_t bytes) {
  constexpr std::align_val_t alignment{64};
  return {static_cast<std::byte*>(::operator new(bytes, alignment)),
          [](std::byte* memory) { ::operator delete (memory, std::align_val_t{64}); }};
}

std::shared_ptr<std::byte> FramePool::take(size_t bytes) {
  std::unique_lock hold(lock_);
  released_.wait(hold, [&] { return stopped_ || !free_.empty() || allocated_ < max_buffers_; });
  if (stopped_) return nullptr;
  Buffer buffer;
  if (free_.empty()) {
    ++allocated_;
  } else {
    buffer = std::move(free_.back());
    free_.pop_back();
  }
  if (!buffer.memory || buffer.bytes < bytes) {
    buffer.memory.reset();
    buffer.bytes = std::max<size_t>(1, (bytes + bytes_ - 1) / bytes_) * bytes_;
    buffer.memory = allocate_(buffer.bytes);
  }
  // The buffer keeps the pool alive.
  return {buffer.memory.get(), [pool = shared_from_this(), buffer](std::byte*) { pool->release(buffer); }};
}

void FramePool::release(Buffer buffer) {
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
