#include "base/task_thread.h"

#include "base/error.h"

#include <ctime>
#include <pthread.h>
#include <system_error>
#include <utility>

namespace fvlm {

std::thread start_thread(std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::device, "cannot start a thread: {}", error.code().message())
        .advise("raise the limit of threads (ulimit -u, a container's pids) or of memory (ulimit -v), or use fewer: "
                "loader.workers, FVLM_THREADS");
  }
}

namespace {

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

} // namespace

double cpu_seconds(std::thread& thread) {
  clockid_t clock{};
  return pthread_getcpuclockid(thread.native_handle(), &clock) == 0 ? seconds_of(clock) : 0;
}

double cpu_seconds() {
  return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

TaskThread::TaskThread() : thread_(start_thread([this] { work(); })) {}

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
