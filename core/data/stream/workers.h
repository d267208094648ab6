// Threads that do small tasks in the order in which they were given.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fvlm {

class Workers {
 public:
  // 0: one for each core but one, at least one. Where the system has no more threads there are fewer, with a warning.
  // Throws Error(device) where it has none.
  explicit Workers(int threads);
  // Tasks that were not begun are not done.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const { return static_cast<int>(threads_.size()); }
  // A task throws nothing. [any thread]
  void give(std::function<void()> task);

 private:
  void work();
  std::mutex lock_; // of the two below
  std::deque<std::function<void()>> tasks_;
  bool stops_ = false;
  std::condition_variable given_;
  std::vector<std::thread> threads_;
};

} // namespace fvlm
