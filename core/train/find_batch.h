// The largest pack of a stage that the memory holds, found by trying: forwards, back and a step of the optimizer on
// samples that nobody wrote.
#pragma once
#include "data/stream/composer.h"
#include "plugin/registry.h"
#include "recipe/plan.h"
#include "train/thread_replicas.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::train {

struct FindBatchRequest {
  at::Device device = at::kCPU;
  int64_t memory = 0;          // of the tensors, bytes; 0: what the machine has to spare
  double precision = 1.0 / 16; // the search ends when what fits and what does not are as near as this
  std::optional<ThreadReplicas::Size> replicas = {}; // none: as model and machine make it
  std::function<void(const std::string& doing)> progress = {};
};

struct PackTry {
  PackSize size;
  int64_t segments = 0; // 0: any number
  int64_t batch = 0;    // samples a step, where it grows with the pack
  enum class End { fits, out_of_memory, not_tried } end = End::not_tried; // not_tried: it needs more than there is
  int64_t estimated = 0, memory = 0;                                      // what was said beforehand, what there was
  int64_t peak = 0, samples = 0;                                          // of what was tried
  double seconds = 0;                                                     // a step
};

struct FoundBatch {
  std::string stage;
  std::vector<PackTry> tries;
  std::optional<size_t> best;   // of the tries
  std::optional<int64_t> batch; // samples a step, where packing.segments says that a pack is the whole of it
  bool holds_step = false;      // the best holds the largest step: a larger one would not be filled
  std::vector<std::string> assumptions;
};

// Trains on nothing and writes nothing. Throws Error for what training would refuse before its first step.
FoundBatch find_batch(const plan::Plan& plan, const plan::Stage& stage, Registry& registry,
                      const FindBatchRequest& request);

} // namespace fvlm::train
