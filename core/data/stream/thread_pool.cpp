#include "data/stream/thread_pool.h"

#include "base/error.h"
#include "base/log.h"
#include "base/task_thread.h"

#include <algorithm>

namespace fvlm {

ThreadPool::ThreadPool(int threads) {
  if (threads == 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) - 1);
  threads_.reserve(static_cast<size_t>(threads));
  try {
    while (std::ssize(threads_) < threads) threads_.push_back(start_thread([this] { work(); }));
  } catch (const Error& error) {
    if (threads_.empty()) throw;
    log_warning("{} of {} threads read data: {}", threads_.size(), threads, error.what());
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard hold(lock_);
    stopping_ = true;
  }
  task_added_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::give(std::function<void()> task) {
  {
    const std::lock_guard hold(lock_);
    tasks_.push_back(std::move(task));
  }
  task_added_.notify_one();
}

void ThreadPool::work() {
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock hold(lock_);
      task_added_.wait(hold, [&] { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

} // namespace fvlm
