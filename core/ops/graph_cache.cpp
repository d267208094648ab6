#include "ops/graph_cache.h"

#include "base/clock.h"
#include "base/log.h"
#include "ops/out_of_memory.h"

#include <c10/util/Exception.h>

namespace fvlm::ops {

GraphCache::GraphCache(std::string name, bool enabled)
    : name_(std::move(name)), runtime_(enabled ? device::runtime() : nullptr) {}

bool GraphCache::run(const std::function<void()>& work) {
  if (graph_ && graph_->is_dropped()) graph_.reset();
  const bool captures = runtime_ && has_run_ && !graph_;
  const double begin = steady_seconds();
  const auto milliseconds = [&begin] { return 1e3 * (steady_seconds() - begin); };
  if (captures) {
    try {
      graph_ = runtime_->capture(work);
      log_debug("{}: captured a CUDA graph of {} kernels in {:.0f} ms", name_, graph_->kernels(), milliseconds());
    } catch (const std::exception& error) {
      if (is_out_of_memory(error)) throw;
      const auto* torch = dynamic_cast<const c10::Error*>(&error); // whose what() contains a backtrace
      log_warning("{}: capturing a CUDA graph failed, running without one: {}", name_,
                  torch ? torch->what_without_backtrace() : error.what());
      runtime_ = nullptr;
    }
  }
  if (!graph_) {
    work();
    if (runtime_ && !has_run_) log_debug("{}: launched a pass of new shapes in {:.0f} ms", name_, milliseconds());
    has_run_ = true;
    return true;
  }
  graph_->replay();
  kernels_ = graph_->kernels();
  return captures;
}

} // namespace fvlm::ops
