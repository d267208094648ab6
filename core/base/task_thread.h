// A persistent thread that runs one task at a time, so that thread-local state survives between tasks.
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace fvlm {

// As the constructor of std::thread, but throws Error(device) where the system cannot start a thread.
std::thread start_thread(std::function<void()> work);
// Processor time that a thread, which has not been joined, has taken so far.
double cpu_seconds(std::thread& thread);
double cpu_seconds(); // of the calling one

class TaskThread {
 public:
  TaskThread();
  ~TaskThread(); // waits for its task
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Requires a wait() for the previous task.
  void start(std::function<void()> task);
  // Blocks until the task is done. Rethrows its exception.
  void wait();

 private:
  void work();

  std::mutex lock_;
  std::condition_variable changed_;
  std::function<void()> task_; // empty: idle
  std::exception_ptr thrown_;
  bool ends_ = false;
  std::thread thread_;
};

} // namespace fvlm
