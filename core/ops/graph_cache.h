// A part of a training step, or a step of generation, as a CUDA graph: it runs eagerly the first time, is captured the
// second time, and replayed from then on. Where Runtime::drop_graphs() took its graph, it is captured anew.
#pragma once
#include "device/runtime.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace fvlm::ops {

class GraphCache {
 public:
  // Without a GPU, or if `enabled` is false, the work always runs eagerly. `name` appears in log messages.
  GraphCache(std::string name, bool enabled);

  // `work` must enqueue the same operations each time, with the same shapes and addresses; if the capture fails it is
  // called a second time. Returns whether the host side of `work` ran, which it does not in a replay.
  bool run(const std::function<void()>& work);

  // Number of kernels that the last run() launched from the captured graph.
  int64_t kernels() const { return kernels_; }

 private:
  std::string name_;
  device::Runtime* runtime_;
  bool has_run_ = false;
  std::unique_ptr<device::CapturedGraph> graph_;
  int64_t kernels_ = 0;
};

} // namespace fvlm::ops
