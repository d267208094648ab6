#include "base/task_thread.h"

#include <utility>

namespace fvlm {

TaskThread::TaskThread() : thread_([this] { work(); }) {}

TaskThread::~TaskThread() {
  {
    const std::lock_guard hold(lock_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TaskThread::start(std::function<void()> task) {
  {
    const std::lock_guard hold(lock_);
    task_ = std::move(task);
  }
  changed_.notify_all();
}

void TaskThread::wait() {
  std::unique_lock hold(lock_);
  changed_.wait(hold, [this] { return !task_; });
  if (const auto thrown = std::exchange(thrown_, nullptr)) std::rethrow_exception(thrown);
}

void TaskThread::work() {
  std::unique_lock hold(lock_);
  while (true) {
    changed_.wait(hold, [this] { return task_ || ends_; });
    if (!task_) return;
    hold.unlock();
    std::exception_ptr thrown;
    try {
      task_();
    } catch (...) {
      thrown = std::current_exception();
    }
    hold.lock();
    thrown_ = thrown;
    task_ = nullptr;
    changed_.notify_all();
  }
}

} // namespace fvlm
