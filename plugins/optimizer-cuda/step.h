// step.h: the arguments that the kernels of both algorithms share.
#pragma once

#include <fvlm/cuda.hpp>

#include <cstdint>

namespace fvlm::plugins {

// All pointers are device memory.
struct ArenaStep {
  float* master;
  void* copy; // rounded copy of the parameters; NULL: the model computes with the master
  const void* gradient;
  void* moment;       // the first state, float or BFloat16
  const float* hyper; // one row per parameter group
  const float* scale;
  const std::int32_t* skip;
};

struct StepTypes {
  fvlm_dtype gradient, copy, moment;

  bool operator==(const StepTypes& o) const { return gradient == o.gradient && copy == o.copy && moment == o.moment; }
};

} // namespace fvlm::plugins
