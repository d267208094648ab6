#include "train/recorder.h"

#include "base/log.h"
#include "train/memory.h"

#include <c10/util/Exception.h>

namespace fvlm::train {

Recorder::Recorder(std::string what, bool wanted)
    : what_(std::move(what)), runtime_(wanted ? device::runtime() : nullptr) {}

bool Recorder::run(const std::function<void()>& work) {
  const bool records = runtime_ && has_run_ && !recording_;
  if (records) {
    try {
      recording_ = runtime_->record(work);
    } catch (const std::exception& error) {
      if (is_out_of_memory(error)) throw;
      const auto* torch = dynamic_cast<const c10::Error*>(&error); // whose what() has a stack of calls
      log_warning("{} runs operation by operation: {}", what_, torch ? torch->what_without_backtrace() : error.what());
      runtime_ = nullptr;
    }
  }
  if (!recording_) {
    work();
    has_run_ = true;
    return true;
  }
  recording_->replay();
  kernels_ = recording_->kernels();
  return records;
}

} // namespace fvlm::train
