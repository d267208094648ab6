// A thread pool that starts tasks in the order in which they were submitted.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fvlm {

class ThreadPool {
 public:
  // 0: one for each core but one, at least one. Where the system has no more threads there are fewer, with a warning.
  // Throws Error(device) where it has none.
  explicit ThreadPool(int threads);
  // Tasks that have not started are discarded.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(threads_.size()); }
  // Tasks must not throw. [any thread]
  void give(std::function<void()> task);

 private:
  void work();
  std::mutex lock_; // of the two below
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::condition_variable task_added_;
  std::vector<std::thread> threads_;
};

} // namespace fvlm
