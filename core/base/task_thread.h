// A thread that does what it is given, one thing after the other, and keeps what is its own between them.
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace fvlm {

// Throws Error(device) where the system has no thread left, in place of std::system_error.
std::thread start_thread(std::function<void()> work);

class TaskThread {
 public:
  TaskThread();
  ~TaskThread(); // when its task is done
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // The one before has been waited for.
  void start(std::function<void()> task);
  // Until it is done. Throws what it threw.
  void wait();

 private:
  void work();

  std::mutex lock_;
  std::condition_variable changed_;
  std::function<void()> task_; // empty: none under way
  std::exception_ptr thrown_;
  bool ends_ = false;
  std::thread thread_;
};

} // namespace fvlm
