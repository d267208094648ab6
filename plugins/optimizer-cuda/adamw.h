// adamw.h: what the plugin's face asks of its kernel.
#pragma once

#include <fvlm/cuda.hpp>

#include <cstdint>

namespace fvlm::plugins {

// All in device memory.
struct AdamwStep {
  float* master;
  void* copy; // NULL: the model computes with the master
  const void* gradient;
  void* first; // float or BFloat16
  float* second;
  const fvlm_optimizer_segment* segments;
  const float* hyper; // lr, beta1, beta2, eps, weight_decay of each group
  const std::int64_t* step;
  const float* scale;
  const std::int32_t* skip;
  std::int64_t segment_count, elements;
};

struct AdamwTypes {
  fvlm_dtype gradient, copy, first;
};

void adamw(cudaStream_t stream, const AdamwTypes& types, const AdamwStep& step);

} // namespace fvlm::plugins
