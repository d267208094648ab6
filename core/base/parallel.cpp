#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace fvlm {

int threads_or_cores(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Indices are taken in order, so that all below a failed one are done or being worked on, and can still report an
// error.
void in_parallel(int64_t count, int threads, const std::function<void(int64_t)>& work) {
  std::atomic<int64_t> next{0};
  std::mutex lock;
  int64_t failed = count;   // guarded by lock
  std::exception_ptr error; // guarded by lock
  auto run = [&] {
    const auto own = work;
    for (int64_t i; (i = next.fetch_add(1)) < count;) try {
        own(i);
      } catch (...) {
        next = count;
        std::scoped_lock guard(lock);
        if (i > failed) continue;
        failed = i;
        error = std::current_exception();
      }
  };
  {
    std::vector<std::jthread> others;
    others.reserve(static_cast<size_t>(std::max(threads, 1)));
    try {
      for (int64_t i = 1; i < std::min<int64_t>(threads, count); ++i) others.emplace_back(run);
    } catch (const std::system_error&) { // no more threads available: the existing ones do the work
    }
    run();
  }
  if (error) std::rethrow_exception(error);
}

} // namespace fvlm
