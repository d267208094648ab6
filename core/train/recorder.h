// A stretch of a training step that a GPU enqueues as a whole: it runs as it is the first time, is recorded at the
// second, and replayed from then on.
#pragma once
#include "device/runtime.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace fvlm::train {

class Recorder {
 public:
  // Where a GPU is not in use, or `wanted` is false, the stretch always runs as it is. `what`: for the log, "the
  // model".
  Recorder(std::string what, bool wanted);

  // The same work each time, in the same shapes and on memory that stays where it is; it may be called once more where
  // it cannot be recorded. Whether its host part was run: not where it is replayed.
  bool run(const std::function<void()>& work);

  // That the last run() launched from a recording.
  int64_t kernels() const { return kernels_; }

 private:
  std::string what_;
  device::Runtime* runtime_;
  bool has_run_ = false;
  std::unique_ptr<device::Recording> recording_;
  int64_t kernels_ = 0;
};

} // namespace fvlm::train
