// step.h: what a step of each algorithm gets.
#pragma once

#include <fvlm/cuda.hpp>

#include <cstdint>

namespace fvlm::plugins {

// All in device memory.
struct ArenaStep {
  float* master;
  void* copy; // NULL: the model computes with the master
  const void* gradient;
  void* moment;       // the first of the states, float or BFloat16
  const float* hyper; // a row for each group
  const float* scale;
  const std::int32_t* skip;
};

struct StepTypes {
  fvlm_dtype gradient, copy, moment;

  bool operator==(const StepTypes& o) const { return gradient == o.gradient && copy == o.copy && moment == o.moment; }
};

} // namespace fvlm::plugins
