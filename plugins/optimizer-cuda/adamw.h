// adamw.h: the arguments and launch of the AdamW kernel.
#pragma once

#include "step.h"

namespace fvlm::plugins {

// All pointers are device memory. hyper: lr, beta1, beta2, eps, weight_decay.
struct AdamwStep : ArenaStep {
  float* second;
  const fvlm_optimizer_segment* segments;
  const std::int64_t* step;
  std::int64_t segment_count, elements;
};

void adamw(cudaStream_t stream, const StepTypes& types, const AdamwStep& step);

} // namespace fvlm::plugins
